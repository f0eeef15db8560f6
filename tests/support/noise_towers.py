"""Test towers: they encode media as noise that depends only on the content, in a given number of
pieces, so that engines can be tested with any small decoder."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock.engine.types import MediaItem
from penstock.kernels.ops_interface import Ops
from penstock.models.configuration.family import MediaFamily
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower import EncodedMedia, MediaSpec
from penstock.quant.checkpoint import Checkpoint


def picture(content: str, rows: int, pieces: int = 1, kind: MediaKind = "image") -> PreparedMedia:
    """Return media that a noise tower encodes as `rows` rows in `pieces` pieces."""
    array = np.frombuffer(content.encode(), np.uint8)
    return PreparedMedia.of(kind, array, layout=(rows, pieces))


def item(media: PreparedMedia, start: int, *, margin: int = 0, whole: bool = False) -> MediaItem:
    """Return `media` in a prompt: its rows, and `margin` separating tokens before and after."""
    rows = media.layout[0]
    length = rows + 2 * margin
    return MediaItem(media.digest(), media, start, length, ((margin, rows),), whole)


def noise(media: PreparedMedia, width: int, layer: int = 0) -> np.ndarray:
    """Return the rows of `media`, or those of a DeepStack layer from 1 on."""
    seed = int.from_bytes(media.digest(), "little") + layer
    rows: np.ndarray = np.random.default_rng(seed).standard_normal((media.layout[0], width))
    return rows.astype(np.float32)


@dataclass
class NoiseTower:
    """A test tower. `pieces`: the contents of which it has encoded a piece, in order. `sizes`: the
    operations that were allowed for each piece. `faults`:
    contents for which it fails: "raises", "nan" (not finite) or "short" (a row too few)."""

    width: int
    deep: int = 0
    kinds: frozenset[MediaKind] = frozenset({"image"})
    faults: dict[str, Literal["raises", "nan", "short"]] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    weight_bytes = 3 << 20

    def scratch_bytes(self) -> int:
        return 5 << 20

    def open(self, checkpoint: Checkpoint, dtype: str) -> NoiseTower:
        return self

    def build(self, ops: Ops[Any]) -> NoiseTower:
        return self

    def encode(
        self, ops: Ops[Any], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, Any]:
        content = media.data.decode()
        try:
            for piece in range(media.layout[1]):
                self.pieces.append(content)
                self.sizes.append(budget.operations)
                if piece < media.layout[1] - 1:
                    yield
        except GeneratorExit:
            self.closed.append(content)
            raise
        arrays = [noise(media, self.width, layer) for layer in range(1 + self.deep)]
        fault = self.faults.get(content)
        if fault == "raises":
            raise IndexError("a bug of the tower")
        if fault == "nan":
            arrays[0][0, 0] = np.nan
        if fault == "short":
            arrays[0] = arrays[0][:-1]
        rows, *deep = map(ops.constant, arrays)
        return EncodedMedia(rows, tuple(deep))

    def family(self, architecture: str) -> MediaFamily:
        """Return the media side of the models of `architecture`. The processor is not used by an
        engine."""

        def read_folder(folder: Path) -> MediaSpec:
            return MediaSpec(processor=None, towers=(self,))  # type: ignore[arg-type]

        return MediaFamily(architecture, read_folder)
