"""The runtime of a CPU: rows, one backend, and the drawing of tokens. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from penstock.runtime.backend import Backend, Floats, Ints
from penstock.runtime.protocol import Masks, RuntimeInfo
from penstock.runtime.rows import RowTable
from penstock.scheduler.types import Drawn, StepPlan, StepResult

Logprobs = tuple[float, tuple[tuple[int, float], ...]]


class CpuRuntime:
    """A `Runtime`. `report`: see there; `rows` and `backend` are of the sizes that `info` says."""

    def __init__(self, rows: RowTable, backend: Backend, info: RuntimeInfo, report: str) -> None:
        self._rows = rows
        self._backend = backend
        self._info = info
        self._report = report

    @property
    def info(self) -> RuntimeInfo:
        return self._info

    @property
    def report(self) -> str:
        return self._report

    def execute(self, plan: StepPlan, masks: Masks | None = None) -> StepResult:
        """See `Runtime.execute`."""
        self._rows.apply(plan)
        logits = self._backend.logits(self._rows.inputs(plan.chunks))
        sampled = [chunk.row for chunk in plan.chunks if chunk.samples]
        assert len(logits) == len(sampled)
        if not sampled:
            return StepResult(plan.step, ())
        return StepResult(plan.step, self._draw(sampled, logits, masks))

    def close(self) -> None:
        self._backend.close()

    def _draw(self, sampled: list[int], logits: Floats, masks: Masks | None) -> tuple[Drawn, ...]:
        """Draw a token for each of the rows `sampled` from `logits` and append it to the row."""
        rows = self._rows.sampling(sampled)
        if masks is not None:
            words, mask_of = masks.wait()
            rows = replace(rows, masks=words, mask_of=mask_of)
        token_ids = self._backend.sample(logits, rows)
        self._rows.append(sampled, token_ids)
        logprobs = self._logprobs(sampled, logits, token_ids)
        drawn = []
        for index, (row, token_id) in enumerate(zip(sampled, token_ids.tolist(), strict=True)):
            if token_id < 0:  # the row is released before anyone reads what was appended
                drawn.append(Drawn(row, token_id, failed=True))
            elif index in logprobs:
                drawn.append(Drawn(row, token_id, *logprobs[index]))
            else:
                drawn.append(Drawn(row, token_id))
        return tuple(drawn)

    def _logprobs(self, sampled: list[int], logits: Floats, token_ids: Ints) -> dict[int, Logprobs]:
        """Of the rows that ask for them and got a token, by index in `sampled`. A token that
        cannot be drawn is not among the best."""
        counts = {
            index: count
            for index, row in enumerate(sampled)
            if (count := self._rows.top_logprobs[row]) is not None and token_ids[index] >= 0
        }
        if not counts:
            return {}
        asked = np.array(list(counts), np.int32)
        own, ids, values = self._backend.top_logprobs(
            logits, asked, token_ids[asked], max(counts.values())
        )
        best = [
            [pair for pair in zip(*row, strict=True) if pair[1] > -math.inf]
            for row in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        return {
            index: (logprob, tuple(pairs[: counts[index]]))
            for index, logprob, pairs in zip(counts, own.tolist(), best, strict=True)
        }
