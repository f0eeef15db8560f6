"""Limits on the tokens of one step and of one sequence."""

from __future__ import annotations

from collections import Counter

from penstock.base.errors import ContextLengthExceeded, InvalidRequest, Overloaded
from penstock.scheduler.sequence import NewSequence


def step_token_limit(max_num_batched_tokens: int, max_model_len: int, *, no_kv_cache: bool) -> int:
    """Return the largest number of tokens of a step, for which the runtime sizes its buffers.
    Without a KV cache, a step must hold a whole context."""
    return max(max_num_batched_tokens, max_model_len) if no_kv_cache else max_num_batched_tokens


def checked_limit(
    new: NewSequence, max_model_len: int, capacity_tokens: int, step_tokens: int
) -> int:
    """Check a new sequence and return the largest number of tokens that it may have.
    `capacity_tokens`: size of the KV cache. `step_tokens`: token budget of a step.

    Raises InvalidRequest for an empty prompt, max_tokens < 0, or a `whole` media span longer than a
    step, and ContextLengthExceeded for a sequence that could never fit.
    """
    prompt_tokens = len(new.token_ids)
    if prompt_tokens == 0:
        raise InvalidRequest("the prompt is empty; it must have one token or more")
    if new.max_tokens < 0:
        raise InvalidRequest(f"max_tokens is {new.max_tokens}; it must be 0 or more")
    longest = max((span.length for span in new.media if span.whole), default=0)
    if longest > step_tokens:
        raise InvalidRequest(
            f"an image has {longest} tokens, which one step must compute together; a step computes "
            f"at most {step_tokens} (max_num_batched_tokens)"
        )
    sampled = min(new.max_tokens, 1)  # the last token is sampled, never computed
    if prompt_tokens > max_model_len - sampled:
        raise ContextLengthExceeded(
            f"the prompt has {prompt_tokens} tokens; with {sampled} of answer the context of "
            f"{max_model_len} tokens holds at most {max_model_len - sampled}"
        )
    known_limit = min(prompt_tokens + new.max_tokens, max_model_len)
    if known_limit - sampled > capacity_tokens:
        raise ContextLengthExceeded(
            f"the prompt of {prompt_tokens} tokens and an answer of up to {new.max_tokens} do not "
            f"fit the cache of {capacity_tokens} tokens"
        )
    return known_limit


def check_scores(new: NewSequence) -> None:
    """Check a new sequence of a model with recurrent layers. Raises InvalidRequest for the
    log-probabilities of a prompt with a `whole` media span: they may take several passes over the
    span, but a recurrent state cannot go back."""
    if new.prompt_logprobs is not None and any(span.whole for span in new.media):
        raise InvalidRequest(
            "prompt_logprobs is set for a prompt with an image; this model computes the "
            "log-probabilities of text prompts only"
        )


class QueueBound:
    """Accepts a sequence while fewer than `max_queue` sequences wait beyond the free rows. Further
    sequences of a `group` are always accepted while a sequence of the group is unfinished.
    Sequences with the group "" are independent."""

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._unfinished: Counter[str] = Counter()

    def check(self, group: str, queued: int, free_rows: int) -> None:
        """Raise Overloaded if no further sequence of `group` is accepted. `queued`: number of
        waiting sequences. `free_rows`: rows that are free for them, so that this many do not count.
        """
        if not self._unfinished[group] and queued - free_rows >= self._max_queue:
            raise Overloaded(
                f"{queued} requests are waiting already; try again later", retry_after_s=1
            )

    def enter(self, group: str) -> None:
        """Count an accepted sequence of `group`."""
        if group:
            self._unfinished[group] += 1

    def leave(self, group: str) -> None:
        """Count a finished sequence of `group`."""
        if group:
            self._unfinished[group] -= 1
            if not self._unfinished[group]:
                del self._unfinished[group]
