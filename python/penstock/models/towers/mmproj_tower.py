"""A tower whose tensors are in an `mmproj` GGUF file."""

from __future__ import annotations

from collections.abc import Callable
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
    - `present`: presents the file in the form in which the tower reads it; None: an
      MmprojCheckpoint.
    """

    tower: TowerSpec
    width: int
    order: RowOrder = field(default=in_order)
    present: Callable[[Checkpoint], Checkpoint] | None = None

    @property
    def kinds(self) -> frozenset[MediaKind]:
        """See TowerSpec."""
        return self.tower.kinds

    def scratch_bytes(self) -> int:
        """See TowerSpec."""
        return self.tower.scratch_bytes()

    def open(self, checkpoint: Checkpoint, dtype: Literal["auto", "f32"]) -> LoadedTower:
        """See TowerSpec."""
        if self.present is not None:
            return self.tower.open(self.present(checkpoint), dtype)
        return self.tower.open(MmprojCheckpoint(checkpoint, self.order), dtype)
