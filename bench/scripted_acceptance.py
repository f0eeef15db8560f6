"""Speedup by a drafter whose acceptance follows a script, for `python -m bench speculation`.

Random checkpoints and small models accept other shares of their drafts than the models that people
serve. So the drafts are scripted: the answers are recorded without speculation, and each draft
token is the recorded one with the probability of a published table, or another token. The target,
its verification and its sampler are real, and so is the time of the drafter that the settings name:
it runs, and its tokens are replaced. Without one, drafts take no time. A draft head is used always,
because random answers say nothing about the tokens that it lacks.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.runtime import CpuRuntime
from penstock.runtime.drafter import Drafter
from penstock.scheduler.types import Draft, DraftSource, SampledToken, StepPlan

TOKENS_PER_STEP: Final = {1: 1.93, 2: 2.73, 3: 3.39, 4: 3.97, 5: 4.41, 8: 5.21}
"""The golden acceptance table of InferenceX: mean tokens per step by number of draft tokens."""


def acceptance_rates() -> list[float]:
    """Return the probability at each distance that a draft token is right if all before it are,
    which gives the means of `TOKENS_PER_STEP`. Distances between two entries of the table have
    equal rates."""
    rates: list[float] = []
    reached, length, tokens = 1.0, 0, 1.0
    for longer, more in TOKENS_PER_STEP.items():
        count, gained = longer - length, (more - tokens) / reached
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            total = sum(middle ** (place + 1) for place in range(count))
            low, high = (middle, high) if total < gained else (low, middle)
        rates += [low] * count
        reached, length, tokens = reached * low**count, longer, more
    return rates


class ScriptedDrafter:
    """A `Drafter` with scripted acceptance. `answers`: the recorded answers by prompt and seed.
    `inner`: the drafter whose time counts; None: no time. `outside`: the share of tokens that are
    not drafted."""

    source: DraftSource = "mtp"

    def __init__(
        self,
        answers: dict[tuple[tuple[int, ...], int], list[int]],
        vocab_size: int,
        inner: Drafter | None,
        outside: float = 0.0,
    ) -> None:
        self._answers = answers
        self._vocab_size = vocab_size
        self._inner = inner
        self._rates = [(1 - outside) * rate for rate in acceptance_rates()]
        self._random = random.Random(1)
        self._rows: dict[int, tuple[int, list[int]]] = {}

    @property
    def reads_hidden(self) -> bool:
        return self._inner is not None and self._inner.reads_hidden

    def propose(
        self, plan: StepPlan, sampled: Sequence[SampledToken], hidden: Any
    ) -> tuple[Draft, ...]:
        """Propose scripted tokens; see `Drafter.propose`."""
        if self._inner is not None:
            self._inner.propose(plan, sampled, hidden)
        for admit in plan.admissions:
            prompt = admit.token_ids[: admit.prompt_tokens]
            self._rows[admit.row] = admit.prompt_tokens, self._answers[prompt, admit.seed]
        drafts = []
        for chunk in plan.chunks:
            if chunk.samples and chunk.num_drafts:
                known = chunk.start + chunk.length + sum(one.row == chunk.row for one in sampled)
                prompt_tokens, answer = self._rows[chunk.row]
                begin = known - prompt_tokens
                right = answer[begin : begin + chunk.num_drafts]
                drafts.append(Draft(chunk.row, tuple(self._scripted(right))))
        return tuple(drafts)

    def close(self) -> None:
        """Do nothing: the caller closes the runtime."""

    def _scripted(self, right: list[int]) -> list[int]:
        return [
            token if self._random.random() < rate else (token + 1) % self._vocab_size
            for token, rate in zip(right, self._rates, strict=False)
        ]


def measure_scripted(
    runtime: CpuRuntime,
    settings: EngineSettings,
    prompts: list[tuple[int, ...]],
    new: int,
    streams_at_once: Sequence[int] = (1, 8),
    lengths: Sequence[int] = tuple(TOKENS_PER_STEP),
    outside: float = 0.0,
) -> dict[str, Any]:
    """Return tokens/s without drafts and with at most each of `lengths` scripted draft tokens, for
    each number of streams. Each answer has `new` tokens, sampled at temperature 1. `outside`: see
    `ScriptedDrafter`."""
    _use_draft_head(runtime._drafter)
    result: dict[str, Any] = {}
    for streams in streams_at_once:
        asked = [
            TokenRequest(f"{row}", prompts[row % len(prompts)], Sampling(temperature=1.0), row, new)
            for row in range(8)
        ]
        batches = [asked[begin : begin + streams] for begin in range(0, 8, streams)]
        plain = _engine(runtime, settings, None, 0)
        _run(plain, batches)  # warm
        _, seconds, tokens = _run(plain, batches)
        answers = {(one.token_ids, one.seed): tokens[one.id] for one in asked}
        without = 8 * new / seconds
        case: dict[str, Any] = {"without": round(without, 1)}
        for most in lengths:
            drafter = ScriptedDrafter(answers, runtime.info.vocab_size, runtime._drafter, outside)
            core = _engine(runtime, settings, drafter, most)
            _run(core, batches)  # measures costs and acceptance
            before = core.gauges().accepted_tokens
            steps, seconds, drafted = _run(core, batches)
            assert drafted == tokens, "drafts changed an answer"
            accepted = core.gauges().accepted_tokens - before
            rows = max(8 * new - accepted, 1)
            case[f"{most} draft tokens"] = {
                "with": round(8 * new / seconds, 1),
                "ratio": round(8 * new / seconds / without, 3),
                "tokens per row and step": round(8 * new / rows, 2),
                "of the table": TOKENS_PER_STEP[most],
                "steps": steps,
            }
        result[f"{streams} stream{'s' * (streams > 1)}"] = case
    return result


def _use_draft_head(drafter: Any) -> None:
    """Let a drafter with a draft head use it for any text."""
    sampler = getattr(drafter, "_sampler", None)
    if sampler is not None and sampler.vocabulary is not None:
        sampler.vocabulary = replace(sampler.vocabulary, most_outside=1.0)


def _engine(
    runtime: CpuRuntime, settings: EngineSettings, drafter: ScriptedDrafter | None, most: int
) -> EngineCore:
    """Return an engine over the model of `runtime` with another drafter."""
    info = msgspec.structs.replace(
        runtime.info, drafter=drafter and drafter.source, max_drafts=most if drafter else 0
    )
    own = CpuRuntime(runtime._rows, runtime._backend, info, "", drafter)
    options = msgspec.structs.replace(
        settings,
        enable_prefix_caching=False,
        draft_model=None,
        speculative_algorithm="mtp" if drafter else "none",
    )
    return EngineCore.for_runtime(own, options)


def _run(
    core: EngineCore, batches: list[list[TokenRequest]]
) -> tuple[int, float, dict[str, list[int]]]:
    """Return the number of steps, the seconds and the tokens of each request. The requests of a
    batch run at the same time. Prompts are short, and their time counts."""
    tokens: dict[str, list[int]] = {}
    steps, began = 0, time.perf_counter()
    for batch in batches:
        for request in batch:
            tokens[request.id] = []
            core.submit(request)
        while core.has_work:
            steps += 1
            for output in core.step():
                tokens[output.id] += [one.token_id for one in output.tokens]
    return steps, time.perf_counter() - began, tokens
