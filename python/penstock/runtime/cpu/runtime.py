"""The CPU runtime: combines the persistent batch, one backend and the sampler. Imports no torch."""

from __future__ import annotations

import msgspec

from penstock.runtime.adapters import RuntimeAdapters
from penstock.runtime.backend import Backend
from penstock.runtime.drafter import Drafter, with_drafts
from penstock.runtime.live_weights import LiveWeights
from penstock.runtime.media import RuntimeMedia
from penstock.runtime.protocol import Masks, RuntimeInfo
from penstock.runtime.row_table import RowTable
from penstock.runtime.sampler import Sampler
from penstock.scheduler.types import StepPlan, StepResult


class CpuRuntime:
    """A `Runtime` on a CPU. `rows` and `backend` must have the sizes in `info`. `drafter`: proposes
    draft tokens after each step; None: the runtime proposes none.

    `live_weights`: the weights, None if they cannot be changed. Set once, after construction.
    """

    def __init__(
        self,
        rows: RowTable,
        backend: Backend,
        info: RuntimeInfo,
        report: str,
        drafter: Drafter | None = None,
    ) -> None:
        self.live_weights: LiveWeights | None = None
        self._rows = rows
        self._backend = backend
        self._drafter = drafter
        self._sampler = Sampler(rows, backend)
        self._info = info
        self._report = report
        self._done: StepResult | None = None
        self._used_blocks = 0  # highest block ever used, plus one

    @property
    def info(self) -> RuntimeInfo:
        return self._info

    @property
    def report(self) -> str:
        return self._report

    @property
    def adapters(self) -> RuntimeAdapters | None:
        return self._backend.adapters

    @property
    def media(self) -> RuntimeMedia | None:
        return self._backend.media

    def use(self, backend: Backend, fingerprint: str) -> None:
        """Compute with another backend from the next step on. It has the sizes and the caches of
        the current one, which stays open."""
        more_bytes = backend.weight_bytes - self._backend.weight_bytes
        self._info = msgspec.structs.replace(
            self._info,
            weight_bytes=self._info.weight_bytes + more_bytes,
            memory_bytes=self._info.memory_bytes + more_bytes,
            fingerprint=fingerprint,
        )
        self._backend = backend
        self._sampler = Sampler(self._rows, backend)

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        """Execute a plan before returning; see `Runtime.submit`."""
        self._done = self.execute(plan, masks)

    def collect(self) -> StepResult:
        """Return the result of the submitted step; see `Runtime.collect`."""
        done, self._done = self._done, None
        assert done is not None, "collect() without submit()"
        return done

    def execute(self, plan: StepPlan, masks: Masks | None = None) -> StepResult:
        """Submit a step and collect its result in one call."""
        self._rows.apply(plan)
        for append in plan.blocks:
            self._used_blocks = max(self._used_blocks, max(append.blocks, default=0) + 1)
        logits = self._backend.logits(self._rows.inputs(plan.chunks))
        result = self._sampler.finish(plan, logits, masks)
        if self._drafter is None:
            return result
        return with_drafts(self._drafter, plan, result, self._backend.hidden)

    def prepare(self) -> bool:
        """Allocate memory of the KV cache ahead of its use; see `Runtime.prepare`."""
        return self._backend.prepare(self._used_blocks)

    def close(self) -> None:
        if self._drafter is not None:
            self._drafter.close()
        self._backend.close()
