"""The runtime of a CPU: rows, one backend, and the drawing of tokens. Imports no torch."""

from __future__ import annotations

from penstock.runtime.backend import Backend, Floats
from penstock.runtime.protocol import RuntimeInfo
from penstock.runtime.rows import RowTable
from penstock.scheduler.types import Drawn, StepPlan, StepResult


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

    def execute(self, plan: StepPlan) -> StepResult:
        """See `Runtime.execute`."""
        self._rows.apply(plan)
        logits = self._backend.logits(self._rows.inputs(plan.chunks))
        sampled = [chunk.row for chunk in plan.chunks if chunk.samples]
        assert len(logits) == len(sampled)
        if not sampled:
            return StepResult(plan.step, ())
        return StepResult(plan.step, self._draw(sampled, logits))

    def close(self) -> None:
        self._backend.close()

    def _draw(self, sampled: list[int], logits: Floats) -> tuple[Drawn, ...]:
        """Draw a token for each of the rows `sampled` from `logits` and append it to the row."""
        asked = self._rows.top_logprobs
        untouched = {
            index: logits[index].copy()
            for index, row in enumerate(sampled)
            if asked[row] is not None
        }
        token_ids = self._backend.sample(logits, self._rows.sampling(sampled))
        self._rows.append(sampled, token_ids)
        drawn = []
        for index, (row, token_id) in enumerate(zip(sampled, token_ids.tolist(), strict=True)):
            count = asked[row]
            if token_id < 0:  # the row is released before anyone reads what was appended
                drawn.append(Drawn(row, 0, failed=True))
            elif count is None:
                drawn.append(Drawn(row, token_id))
            else:
                logprob, top = self._backend.top_logprobs(untouched[index], token_id, count)
                drawn.append(Drawn(row, token_id, logprob, tuple(top)))
        return tuple(drawn)
