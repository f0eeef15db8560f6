"""The linear layers of a block that LoRA adapters may change, and the modules of trained models
whose adapters change them.

A decoder computes some modules of a trained model as one linear layer, and some in several. A part
is a range of rows of a linear layer that has factors of its own in an adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = "slice | npt.NDArray[np.intp]"
Factor: TypeAlias = "float | npt.NDArray[np.float32]"


@dataclass(frozen=True, slots=True)
class LoraLinear:
    """A linear layer of a decoder layer.

    - `inputs`: the number of its columns.
    - `parts`: the name of each part -> the number of its rows, in the order of rows. A name is
      unique in a decoder layer.
    """

    inputs: int
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """The rows of a module that are one part.

    - `part`: the name of the part.
    - `rows`: the rows of the module, in the order of the part; None: all rows.
    - `factor`: by which the weights of the part are multiplied when they are read; one number, or
      one per row.
    """

    part: str
    rows: Rows | None = None
    factor: Factor = 1.0

    def of(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the part's rows of `values` [N, C], a matrix with the rows of the module."""
        taken = values if self.rows is None else values[self.rows]
        if isinstance(self.factor, float):
            return taken if self.factor == 1.0 else taken * np.float32(self.factor)
        return taken * self.factor[:, None]


LoraTarget: TypeAlias = "tuple[PlacedRows, ...]"
"""All rows of a module, by parts. The parts have the same inputs."""


@dataclass(frozen=True, slots=True)
class LoraBlock:
    """The part of a block, or of all blocks of a layer, that adapters may change.

    - `linears`: the name by which the block calls `LayerStep.linear` -> the linear layer, in the
      order of a step.
    - `targets`: the name of a module within its layer, as in transformers -> its rows.
    - `refused`: the name of a module -> why its adapters are not supported.
    """

    linears: Mapping[str, LoraLinear]
    targets: Mapping[str, LoraTarget]
    refused: Mapping[str, str] = field(default_factory=dict)

    def size(self, target: LoraTarget) -> tuple[tuple[int, ...], int]:
        """Return the number of rows of each part of a module, and the number of its columns."""
        sizes = [self.part(one.part) for one in target]
        return tuple(rows for rows, _ in sizes), sizes[0][1]

    def part(self, name: str) -> tuple[int, int]:
        """Return the numbers of rows and columns of a part."""
        (linear,) = (one for one in self.linears.values() if name in one.parts)
        return linear.parts[name], linear.inputs


def whole(part: str, factor: Factor = 1.0) -> LoraTarget:
    """Return the target of a module whose rows are one part."""
    return (PlacedRows(part, factor=factor),)


def stacked(parts: Mapping[str, int], factors: Mapping[str, Factor] | None = None) -> LoraTarget:
    """Return the target of a module that stacks parts: their names -> their numbers of rows."""
    ends = pairwise(accumulate(parts.values(), initial=0))
    given = factors or {}
    return tuple(
        PlacedRows(name, slice(*rows), given.get(name, 1.0))
        for name, rows in zip(parts, ends, strict=True)
    )


def inside(targets: Mapping[str, LoraTarget], *blocks: str) -> dict[str, LoraTarget]:
    """Return the targets of modules within another module, which has one of the names `blocks`."""
    return {f"{block}.{name}": target for block in blocks for name, target in targets.items()}


def joined(blocks: Sequence[LoraBlock]) -> LoraBlock:
    """Return the linear layers and modules of several blocks as those of one."""
    linears: dict[str, LoraLinear] = {}
    targets: dict[str, LoraTarget] = {}
    refused: dict[str, str] = {}
    for block in blocks:
        linears |= block.linears
        targets |= block.targets
        refused |= block.refused
    return LoraBlock(linears, targets, refused)
