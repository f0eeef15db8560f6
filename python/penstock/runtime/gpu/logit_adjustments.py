"""What changes the logits of rows on a device, kept there as the host knows it.

The numbers of a row (its penalties, how many biases it has) go with the words of a step. Its lists
and its counted tokens are written here: when the device first samples for it, and again after the
host drew for it. In between the device counts its own samples.
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
    """Writes to `state` what `rows` has, by way of `link`. Within a step's order of the stream, so
    a row may have a new tenant while a step in flight still samples for the old one."""

    def __init__(
        self, rows: RowTable, state: Adjustments[torch.Tensor], link: HostTransfers
    ) -> None:
        self._rows = rows
        self._state = state
        self._link = link
        self._stale: set[int] = set()

    def take(self, plan: StepPlan) -> None:
        """Note which rows a plan gives a new tenant, or tokens that nobody drew."""
        self._stale.update(admit.row for admit in plan.admissions)
        self._stale.update(forced.row for forced in plan.forced)

    def forget(self, rows: Iterable[int]) -> None:
        """The host drew for `rows`."""
        self._stale.update(rows)

    def refresh(self, rows: Iterable[int]) -> None:
        """The device is about to draw for `rows`."""
        stale = self._stale.intersection(rows)
        for row in stale:
            self._write(row)
        self._stale -= stale

    def _write(self, row: int) -> None:
        features, state = self._rows.features(row), self._state
        if features is None:
            return
        if features.bias is not None:
            tokens, values = features.bias
            state.bias_tokens[row, : len(tokens)] = self._link.there(tokens)
            state.bias_values[row, : len(values)] = self._link.there(values)
        if features.held is not None:
            held = features.held.tokens
            state.suppressed[row, : len(held)] = self._link.there(held)
        if features.seen is not None:
            tokens, counts = features.seen.listed()
            own = state.counts[row]
            own.zero_()
            own[self._link.there(tokens).long()] = self._link.there(counts + np.int32(1))
