"""A drafter whose weights and KV cache are on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.drafter import Drafter
from penstock.runtime.gpu.draft_steps import DraftSteps
from penstock.runtime.gpu.kv_pools import KvPools
from penstock.runtime.row_table import RowTable
from penstock.scheduler.types import DraftSource


@dataclass(frozen=True, slots=True)
class PlacedDrafter:
    """A drafter on a device.

    `source`: the source of its draft tokens.
    `pools`: its KV cache.
    `steps`: its steps, which are captured.
    `create`: returns the drafter for the rows of a runtime.
    """

    source: DraftSource
    pools: KvPools
    steps: DraftSteps
    create: Callable[[RowTable], Drafter]
