"""Runs requests through a scheduler and a runtime, in every way a request may be computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import numpy as np

from penstock.dialog import Sampling
from penstock.kernels.step_inputs import StepInputs
from penstock.runtime import CpuRuntime
from penstock.runtime.prompt_rows import PromptTable
from penstock.runtime.protocol import Runtime
from penstock.runtime.row_table import RowTable
from penstock.scheduler import NO_ADAPTER, CpuKvCacheIndex, NewSequence, Scheduler
from tests.support.dry_sequence_breakers import breakers_of

Token = tuple[int, float, tuple[tuple[int, float], ...]]


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    seed: int = 0


@dataclass
class Outcome:
    """`answers[i]`: the tokens of request i with their logprobs."""

    answers: list[list[Token]]
    cached_tokens: list[int]
    preemptions: int


def requests_over(vocab: int, longest: int, seed: int = 1) -> list[Request]:
    """Nine requests of which some share a prefix; greedy, tempered and truncated draws, and three
    whose draws depend on all of their tokens."""
    random = np.random.default_rng(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(random.integers(0, vocab, count).tolist())

    stem = tokens(longest // 2)
    greedy, free = Sampling(temperature=0.0), Sampling(temperature=1.0)
    narrow = Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02)
    penalized = Sampling(
        temperature=0.0,
        presence_penalty=0.7,
        frequency_penalty=0.4,
        repetition_penalty=1.3,
        logit_bias={3: 4.0, 5: -100.0},
    )
    dry = Sampling(
        temperature=0.7,
        dry_multiplier=1.5,
        dry_base=1.4,
        dry_allowed_length=1,
        dry_breakers=breakers_of([(7,), (9, 11)]),
    )
    word = tokens(5)
    return [
        Request(tokens(1), 60, narrow, seed=12),
        Request(tokens(16), 50, free, seed=14),
        Request((*stem, *tokens(longest // 2)), 12, greedy),
        Request((*stem, *tokens(7)), 20, free, seed=11),
        Request(tokens(33), 16, greedy),
        Request((*stem, *tokens(2)), 10, narrow, seed=13),
        Request((*stem, *tokens(3)), 40, penalized),
        Request(word * 4, 40, dry, seed=15),
        Request(word * 3, 30, msgspec.structs.replace(dry, repetition_penalty=0.9), seed=16),
    ]


def poison(runtime: CpuRuntime) -> None:
    """NaN in all of the cache and in all recurrent states: whatever is read before it is written
    shows."""
    backend: Any = runtime._backend
    poison_caches(backend.caches)
    for array in state_arrays(backend):
        array[...] = np.nan


def poison_caches(caches: Iterable[Any]) -> None:
    """NaN in all keys and values; None is a layer without a cache."""
    for cache in caches:
        if cache is None:
            continue
        for array in (cache.keys, cache.values):  # -1: NaN scales of an int8 cache
            array[...] = -1 if str(array.dtype).endswith("int8") else np.nan


def state_arrays(backend: Any) -> list[Any]:
    """Return the arrays of the recurrent states of all layers."""
    states = [state for state in backend.states if state is not None]
    parts = [part for one in states for part in (one.conv, one.matrix) if part is not None]
    return [getattr(part, field.name) for part in parts for field in fields(part)]


class PlanAndCalls:
    """A native backend that computes every step by its plan and by eager calls, both from the same
    recurrent states, and compares."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def logits(self, inputs: StepInputs[Any]) -> Any:
        states = state_arrays(self._native)
        before = [array.copy() for array in states]
        by_calls = self._native.eager_logits(inputs)
        after = [array.copy() for array in states]
        for array, earlier in zip(states, before, strict=True):
            array[...] = earlier
        by_plan = self._native.logits(inputs)
        assert by_plan.tobytes() == by_calls.tobytes()
        assert all(
            one.tobytes() == other.tobytes() for one, other in zip(states, after, strict=True)
        )
        self.steps += 1
        return by_plan


def scheduler_of(runtime: Any, **options: Any) -> Scheduler:
    """Return a scheduler for the rows of these tests' small runtimes, over the whole cache."""
    facts = runtime.info
    sizes = {
        "num_blocks": facts.cache_blocks,
        "block_size": facts.block_size,
        "max_model_len": facts.max_model_len,
        "max_num_seqs": 6,
        "max_num_batched_tokens": facts.max_model_len,
        "cpu_cache": CpuKvCacheIndex(facts.cpu_blocks, facts.max_saves_per_step),
        "state_snapshots": facts.state_snapshots,
        "drafter": facts.drafter,
        "max_drafts": facts.max_drafts,
        "tells_prompts_apart": facts.tells_prompts_apart,
    }
    return Scheduler(**(sizes | options))


def row_table_of(runtime: Any, **options: Any) -> RowTable:
    """Return rows for a second runtime over the backend of `runtime`, which has six rows."""
    facts = runtime.info
    prompts = PromptTable(6) if facts.tells_prompts_apart else None
    return RowTable(6, facts.max_model_len, facts.block_size, prompts=prompts, **options)


def generate(
    runtime: CpuRuntime,
    scheduler: Scheduler,
    requests: list[Request],
    adapter_slots: list[int] | None = None,
) -> Outcome:
    """All `requests` at once, with the adapters in these slots of the runtime."""
    outcome = Outcome([[] for _ in requests], [0] * len(requests), 0)
    slots = adapter_slots or [NO_ADAPTER] * len(requests)
    for index, (request, slot) in enumerate(zip(requests, slots, strict=True)):
        new = NewSequence(
            str(index),
            token_ids=request.prompt,
            sampling=request.sampling,
            seed=request.seed,
            max_tokens=request.max_tokens,
            top_logprobs=2,
            adapter="" if slot == NO_ADAPTER else f"generation-{slot}",
        )
        scheduler.submit(new, adapter_slot=slot)
    finished = 0
    while (plan := scheduler.plan()) is not None:
        for progress in scheduler.commit(runtime.execute(plan)):
            assert progress.finish != "error"
            assert progress.token_id is not None and progress.logprob is not None
            token = (progress.token_id, progress.logprob, progress.top)
            outcome.answers[int(progress.id)].append(token)
            if progress.cached_tokens is not None:
                outcome.cached_tokens[int(progress.id)] = progress.cached_tokens
            finished += progress.finish is not None
    assert finished == len(requests)
    outcome.preemptions = scheduler.gauges().preemptions
    return outcome


def first_logprobs(runtime: Runtime) -> list[float]:
    """Return the logprob of the first token of each greedy request; closes the runtime, which has a
    small model."""
    asked = requests_over(runtime.info.vocab_size, 60)
    greedy = [one for one in asked if one.sampling.temperature == 0.0]
    answers = generate(runtime, scheduler_of(runtime), greedy).answers  # type: ignore[arg-type]
    runtime.close()
    return [answer[0][1] for answer in answers]
