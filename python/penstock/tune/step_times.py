"""Measures the steps of a runtime: prefill, and decodes of one and of several sequences."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.dialog import Sampling
from penstock.runtime.protocol import Runtime
from penstock.scheduler.types import Admit, AppendBlocks, Chunk, StepPlan

STEPS: Final = 16
"""Most decode steps of a measurement."""

_LEAST_STEPS: Final = 3
_BUDGET_S: Final = 0.4
"""Seconds after which a measurement takes no further sample."""

_PART: Final = 128
"""Tokens of a prompt from which the time per token hardly depends on their number."""

_LONG_S: Final = 1.0
"""Seconds of a prompt from which only a part of it is measured."""

_GREEDY: Final = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Work:
    """The steps to measure.

    - `prompt`: tokens of the prompt.
    - `context`: tokens of the longest sequence.
    - `rows`: sequences that decode together.
    """

    prompt: int
    context: int
    rows: int

    @property
    def cache_tokens(self) -> int:
        """The tokens for which the KV cache needs blocks, if each row has whole blocks of its
        own."""
        return max(self.context, self.rows * (self.prompt + 2 * STEPS))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a whole prompt, and of a decode step of one sequence after it, of one sequence at
    the end of the context, and of all rows after a prompt each."""

    prompt_s: float
    decode_s: float
    deep_s: float
    batch_s: float


def time_steps(
    runtime: Runtime, work: Work, clock: Callable[[], float] = time.perf_counter
) -> StepTimes:
    """Run the steps of `work` and return their times. The KV cache is read as it is, so a step at
    the end of a context needs no prefill of it."""
    steps = _Steps(runtime, clock)
    steps.decode((work.prompt,))  # the first step also allocates memory
    prompt_s = _prompt_s(steps, work.prompt)
    decode_s = _lower_quartile(steps.decode((work.prompt,)))
    deep_s = _lower_quartile(steps.decode((work.context - STEPS,)))
    batch_s = decode_s
    if work.rows > 1:
        batch_s = _lower_quartile(steps.decode((work.prompt,) * work.rows))
    return StepTimes(prompt_s, decode_s, deep_s, batch_s)


def _prompt_s(steps: _Steps, prompt: int) -> float:
    """Return the seconds of a prompt. If a part of it already takes long, the rest takes as long
    per token."""
    part = min(prompt, _PART)
    part_s = min(steps.prefill(part))
    if part_s * prompt / part > _LONG_S:
        return part_s * prompt / part
    return min(steps.prefill(prompt))


class _Steps:
    """Makes plans and times them. Every measurement has rows of its own from the first one on."""

    def __init__(self, runtime: Runtime, clock: Callable[[], float]) -> None:
        self._runtime = runtime
        self._clock = clock
        self._step = 0
        self._held: tuple[int, ...] = ()

    def prefill(self, prompt: int) -> list[float]:
        """Return the seconds of several prefills of `prompt` tokens, in chunks as the scheduler
        makes them."""
        limit = self._runtime.info.sizes.max_num_batched_tokens
        parts = [(start, min(limit, prompt - start)) for start in range(0, prompt, limit)]

        def once() -> float:
            admissions, blocks = self._admitted((prompt,))
            began = self._clock()
            for start, length in parts:
                last = start + length == prompt
                chunk = Chunk(0, start, length, samples=last)
                self._run(StepPlan(self._next(), self._held, admissions, blocks, (chunk,)))
                admissions, blocks, self._held = (), (), ()
            self._held = (0,)
            return self._clock() - began

        return self._repeat(once, 3, least=1)

    def decode(self, contexts: tuple[int, ...]) -> list[float]:
        """Return the seconds of decode steps of one row after each of `contexts` tokens."""
        admissions, blocks = self._admitted(contexts)
        done = 0

        def once() -> float:
            nonlocal admissions, blocks, done
            chunks = tuple(
                Chunk(row, context - 1 + done, 1, samples=True)
                for row, context in enumerate(contexts)
            )
            plan = StepPlan(self._next(), self._held, admissions, blocks, chunks)
            began = self._clock()
            self._run(plan)
            taken = self._clock() - began
            admissions, blocks, self._held = (), (), ()
            done += 1
            return taken

        times = self._repeat(once, STEPS, least=_LEAST_STEPS)
        self._held = tuple(range(len(contexts)))
        return times[1:]

    def _repeat(self, once: Callable[[], float], most: int, least: int) -> list[float]:
        times: list[float] = []
        while len(times) < most and (len(times) < least or sum(times) < _BUDGET_S):
            times.append(once())
        return times

    def _run(self, plan: StepPlan) -> None:
        self._runtime.submit(plan)
        self._runtime.collect()

    def _next(self) -> int:
        self._step += 1
        return self._step

    def _admitted(
        self, contexts: tuple[int, ...]
    ) -> tuple[tuple[Admit, ...], tuple[AppendBlocks, ...]]:
        """Return the admission of a row for each context, with blocks for STEPS further tokens."""
        info = self._runtime.info
        admissions, blocks, first = [], [], 0
        for row, context in enumerate(contexts):
            tokens = tuple((97 * place + row) % info.vocab_size for place in range(context))
            admissions.append(Admit(row, tokens, context, _GREEDY, seed=0, top_logprobs=None))
            count = -(-min(context + STEPS, info.max_model_len) // info.block_size)
            blocks.append(AppendBlocks(row, tuple(range(first, first + count))))
            first += count
        return tuple(admissions), tuple(blocks)


def _lower_quartile(times: list[float]) -> float:
    """Return a low value of the times, since disturbances only add time."""
    return sorted(times)[len(times) // 4]
