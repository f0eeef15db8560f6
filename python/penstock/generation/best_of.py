"""Selects the best of several answers to a prompt, and sums the usage of all answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from penstock.dialog import Event, RunEnded, RunFailed, RunStarted, Usage
from penstock.generation.choice import Choice


def best_events(
    events: Mapping[int, Sequence[Event]], choices: Sequence[Choice], best_of: int, n: int
) -> Iterator[Event]:
    """Yield the events of the `n` likeliest answers to each prompt, likeliest first.

    `events`: choice index -> events of the finished choice. `choices`: `best_of` choices per
    prompt, in order. The likelihood of a choice is the mean log-probability of its tokens. The
    selected choices get new indices.
    """
    for start in range(0, len(choices), best_of):
        ranked = sorted(choices[start : start + best_of], key=_mean_logprob, reverse=True)
        for rank, choice in enumerate(ranked[:n]):
            index = start // best_of * n + rank
            for event in events[choice.index]:
                assert not isinstance(event, RunStarted | RunEnded | RunFailed)
                yield msgspec.structs.replace(event, choice=index)


def total_usage(choices: Sequence[Choice], per_prompt: int) -> Usage:
    """Return the usage of a run with `per_prompt` choices per prompt.

    Prompt tokens count once per prompt, the tokens of all answers are added, and times are the
    maximum over all choices.
    """
    usages = [choice.usage for choice in choices]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages[::per_prompt]),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(
            min(usage.cached_tokens for usage in usages[start : start + per_prompt])
            for start in range(0, len(usages), per_prompt)
        ),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        prompt_time_s=max(usage.prompt_time_s for usage in usages),
        completion_time_s=max(usage.completion_time_s for usage in usages),
    )


def _mean_logprob(choice: Choice) -> float:
    return choice.logprob_sum / max(1, choice.num_tokens)
