"""Keeps the logits processors of rows on the device.

The penalties of a row and the lengths of its lists are sent with the words of a step. The lists
(logit biases, suppressed tokens) and the token counts are written by this module: when the device
first samples for the row, and again after the CPU has sampled for it. In between, the device counts
its own samples.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from penstock.kernels.persistent_batch import Adjustments
from penstock.runtime.gpu.host_transfers import HostTransfers
from penstock.runtime.row_table import RowTable
from penstock.scheduler.types import StepPlan


class LogitAdjustments:
    """Copies the logits processors of `rows` to `state` on the device, in the order of the stream,
    because a row may get a new sequence while a step in flight still samples for the old one."""

    def __init__(
        self, rows: RowTable, state: Adjustments[torch.Tensor], transfers: HostTransfers
    ) -> None:
        self._rows = rows
        self._state = state
        self._transfers = transfers
        self._stale: set[int] = set()

    def note_plan(self, plan: StepPlan) -> None:
        """Mark the rows to which a plan gives a new sequence or forced tokens as outdated on the
        device."""
        self._stale.update(admit.row for admit in plan.admissions)
        self._stale.update(forced.row for forced in plan.forced)

    def mark_stale(self, rows: Iterable[int]) -> None:
        """Mark `rows` as outdated on the device, because the CPU has sampled for them."""
        self._stale.update(rows)

    def refresh(self, rows: Iterable[int]) -> None:
        """Send the logits processors of those `rows` that are outdated on the device, because the
        device is about to sample for `rows`."""
        stale = self._stale.intersection(rows)
        for row in stale:
            self._write(row)
        self._stale -= stale

    def _write(self, row: int) -> None:
        processors, state = self._rows.logits_processors(row), self._state
        if processors is None:
            return
        if processors.bias is not None:
            tokens, values = processors.bias
            state.bias_tokens[row, : len(tokens)] = self._transfers.to_device(tokens)
            state.bias_values[row, : len(values)] = self._transfers.to_device(values)
        if processors.min_tokens is not None:
            suppressed = processors.min_tokens.tokens
            state.suppressed[row, : len(suppressed)] = self._transfers.to_device(suppressed)
        if processors.seen is not None:
            tokens, counts = processors.seen.listed()
            own = state.counts[row]
            own.zero_()
            own[self._transfers.to_device(tokens).long()] = self._transfers.to_device(
                counts + np.int32(1)
            )
