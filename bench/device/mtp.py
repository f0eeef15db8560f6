"""The MTP head of a model of real shape: the times of its passes and of steps that verify
drafts."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bench.device import engine
from bench.device.layered_models import LAYERED
from bench.device.machine import Bench
from bench.device.result_log import Record
from penstock.kernels.step_inputs import StepInputs
from penstock.runtime.gpu.memory_terms import HEAD_TOKENS
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.scheduler.types import Admit, AppendBlocks, Chunk, StepPlan, StepResult

_STEPS = 24
_DRAFTS = (0, 1, 3, 7)
"""Drafts of one row; none: a decode step, which is a replay."""


def measure(bench: Bench, record: Record, name: str) -> None:
    """Run the section for one model, with random weights: no draft is accepted."""
    shape = replace(LAYERED[name], has_mtp=True)
    if bench.rehearsed:
        shape = shape.small()
    sizes = engine.SMALL if bench.rehearsed else engine.FULL
    record.title(f"MTP head of {name}, 1 sequence, {sizes.prompt} tokens of context, bfloat16")
    given: dict[str, Any] = {"speculative_algorithm": "mtp"}
    with engine.open_runtime(bench, record, shape, sizes, **given) as runtime:
        for tokens in (1, HEAD_TOKENS):
            _passes(bench, record, runtime, tokens)
        row = _Row(runtime, sizes.prompt)
        for drafts in _DRAFTS:
            results = [row.step(drafts) for _ in range(_STEPS if not bench.rehearsed else 3)]
            record.line(
                f"decode 1, {drafts} drafts",
                ms=1e3 * statistics.median(seconds for seconds, _ in results),
                drafter_ms=1e3 * statistics.median(result.draft_s for _, result in results),
            )


def _passes(bench: Bench, record: Record, runtime: GpuRuntime, tokens: int) -> None:
    """Record the time of a pass of the head over `tokens` tokens, and of the same pass with logits
    of the last one, until its results are there."""
    head = runtime.placed_drafter
    assert head is not None and head.steps._states is not None
    states = torch.zeros_like(head.steps._states[:tokens])
    index = np.arange(tokens, dtype=np.int32)
    for samples in (0, 1):
        inputs = StepInputs(
            tokens=index,
            positions=index,
            slots=index,
            query_starts=np.array([0, tokens], np.int32),
            context_lens=np.array([tokens], np.int32),
            block_tables=np.zeros((1, 1), np.int32),
            sample_rows=np.full(samples, tokens - 1, np.int32),
        )

        def run(inputs: StepInputs[Any] = inputs) -> None:
            with runtime.launching():
                logits, hidden = head.steps.run(inputs, states, index)
                assert hidden is not None
                (logits if len(logits) else hidden)[0, 0].item()

        record.line(f"head {tokens} tokens, {samples} sampled", ms=1e3 * bench.wall_s(run, 20))


class _Row:
    """One sequence, whose plans are written by hand, so that each step has as many drafts as it
    should. All drafts are one token that is hardly ever right."""

    def __init__(self, runtime: GpuRuntime, prompt: int) -> None:
        self._runtime, self._known, self._steps = runtime, prompt, 1
        blocks = -(-runtime.info.max_model_len // runtime.info.block_size)
        tokens = tuple((31 * place) % (runtime.info.vocab_size - 10) + 3 for place in range(prompt))
        first = StepPlan(
            step=1,
            releases=(),
            admissions=(Admit(0, tokens, prompt, engine.GREEDY, 0, None),),
            blocks=(AppendBlocks(0, tuple(range(blocks))),),
            chunks=(Chunk(0, 0, prompt, True),),
        )
        self._advance(runtime.execute(first))

    def step(self, drafts: int) -> tuple[float, StepResult]:
        """Compute a step that verifies `drafts` drafts and asks for as many. Return its seconds and
        its result."""
        self._steps += 1
        chunk = Chunk(0, self._known - 1, 1, True, (2,) * drafts, num_drafts=drafts)
        plan = StepPlan(self._steps, (), (), (), (chunk,))
        began = time.perf_counter()
        result = self._runtime.execute(plan)
        seconds = time.perf_counter() - began
        self._advance(result)
        return seconds, result

    def _advance(self, result: StepResult) -> None:
        assert not any(one.failed for one in result.sampled), "logits are not finite"
        self._known += len(result.sampled)
