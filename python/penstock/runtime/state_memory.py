"""The memory of recurrent states: one per row, and snapshots for the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.kernels.recurrent_state import STATE_TILE
from penstock.models.decoder.spec import DecoderSpec
from penstock.runtime.mebibytes import MIB, mib
from penstock.scheduler import MAX_DRAFT_TOKENS

DEFAULT_SNAPSHOT_MIB: Final = 512
LEAST_SNAPSHOTS: Final = 4
"""Snapshots that a default setting always allows, whatever their size."""
SNAPSHOTS_PER_ROW: Final = 4
"""Most snapshots per row with a default setting."""


@dataclass(frozen=True, slots=True)
class StateMemory:
    """The memory of the recurrent states of a model.

    `rows`, `row_bytes`: number of rows, and bytes of the state of one.
    `snapshots`, `snapshot_bytes`: number of snapshots, and bytes of one.
    `draft_tokens`: most draft tokens of a step, which determine the rings of a row.
    """

    rows: int = 0
    row_bytes: int = 0
    snapshots: int = 0
    snapshot_bytes: int = 0
    draft_tokens: int = 0

    @property
    def size_bytes(self) -> int:
        return self.rows * self.row_bytes + self.snapshots * self.snapshot_bytes

    def term(self) -> str:
        """Return the term of the memory formula in MiB, with a plus sign after it; "" without
        recurrent layers."""
        if not self.size_bytes:
            return ""
        return (
            f"{mib(self.size_bytes)} recurrent states ({self.rows} sequences x "
            f"{self.row_bytes / MIB:.2f} + {self.snapshots} snapshots x "
            f"{self.snapshot_bytes / MIB:.2f}) + "
        )

    def advice(self) -> str:
        """Return the end of the advice for a model that does not fit; "" without snapshots."""
        if not self.snapshots:
            return ""
        return "; a smaller state_snapshot_memory_mb needs less for recurrent states"


NO_STATES: Final = StateMemory()


def state_memory(
    spec: DecoderSpec, settings: EngineSettings, max_num_seqs: int, padding_rows: int = 0
) -> StateMemory:
    """Return the memory of the recurrent states of `max_num_seqs` rows, of `padding_rows` more, and
    of the snapshots that the settings allow.

    Raises ModelError for a model with recurrent layers if KV blocks are not whole tiles, or if
    `state_snapshot_memory_mb` is neither 0 nor enough for one snapshot.
    """
    shapes = [shape for shape in spec.states if shape is not None]
    if not shapes:
        return NO_STATES
    if settings.block_size % STATE_TILE:
        raise ModelError(
            f"block_size is {settings.block_size}; a model with recurrent layers needs a multiple"
            f" of {STATE_TILE}"
        )
    draft_tokens = MAX_DRAFT_TOKENS if settings.speculates else 0
    snapshot_bytes = 4 * sum(shape.snapshot_floats for shape in shapes)
    return StateMemory(
        rows=max_num_seqs + padding_rows,
        row_bytes=4 * sum(shape.row_floats(draft_tokens) for shape in shapes),
        snapshots=_snapshots(settings, snapshot_bytes, max_num_seqs),
        snapshot_bytes=snapshot_bytes,
        draft_tokens=draft_tokens,
    )


def _snapshots(settings: EngineSettings, snapshot_bytes: int, max_num_seqs: int) -> int:
    wanted = settings.state_snapshot_memory_mb
    if wanted == 0 or settings.no_kv_cache or not settings.enable_prefix_caching:
        return 0
    if wanted is None:
        most = DEFAULT_SNAPSHOT_MIB * MIB // snapshot_bytes
        return max(LEAST_SNAPSHOTS, min(most, SNAPSHOTS_PER_ROW * max_num_seqs))
    if wanted * MIB < snapshot_bytes:
        raise ModelError(
            f"state_snapshot_memory_mb is {wanted}; it must be 0 or at least"
            f" {mib(snapshot_bytes)}, the MiB of one snapshot of this model"
        )
    return wanted * MIB // snapshot_bytes
