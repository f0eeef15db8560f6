"""A tower whose tensors are in an `mmproj` GGUF file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.models.checkpoint.mmproj_checkpoint import MmprojCheckpoint, RowOrder, in_order
from penstock.models.media.prepared import MediaKind
from penstock.models.towers.tower import LoadedTower, TowerSpec
from penstock.quant.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class MmprojTower:
    """A TowerSpec that opens `tower` from a GGUF file.

    - `width`: the width of the embeddings, which must be that of the language model.
    - `order`: see MmprojCheckpoint.
    """

    tower: TowerSpec
    width: int
    order: RowOrder = field(default=in_order)

    @property
    def kinds(self) -> frozenset[MediaKind]:
        """See TowerSpec."""
        return self.tower.kinds

    def scratch_bytes(self) -> int:
        """See TowerSpec."""
        return self.tower.scratch_bytes()

    def open(self, checkpoint: Checkpoint, dtype: Literal["auto", "f32"]) -> LoadedTower:
        """See TowerSpec."""
        return self.tower.open(MmprojCheckpoint(checkpoint, self.order), dtype)
