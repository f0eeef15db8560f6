"""The quantization schemes of Hugging Face folders, which config readers return and checkpoints
take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.base.errors import ModelError

BLOCK = 128
"""The block size of 8-bit floats that kernels support, besides whole rows and matrices."""

LayoutName = Literal["gptq", "gptq_v2", "awq", "packed", "int8", "mlx"]


@dataclass(frozen=True, slots=True)
class Float8Scheme:
    """8-bit floats. `block`: the rows and columns that share a scale; None: whole rows or the whole
    matrix, depending on the shape of the scales."""

    block: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Grouping:
    """The groups of integers. `group`: the columns of a row that share a scale, a multiple of 32;
    None: all columns."""

    bits: Literal[4, 8]
    group: int | None


@dataclass(frozen=True, slots=True)
class IntegerScheme:
    """Integers in groups. `layout`: the order of integers and scales in the file. `symmetric`: the
    config says that all zero points are the middle of the range. `own`: the groupings of modules
    that differ, by name."""

    layout: LayoutName
    grouping: Grouping
    symmetric: bool
    own: Mapping[str, Grouping] = field(default_factory=dict, compare=False)

    def grouping_of(self, module: str) -> Grouping:
        """Return the grouping of one module."""
        return self.own.get(module, self.grouping)


@dataclass(frozen=True, slots=True)
class Mxfp4Scheme:
    """MXFP4. The names of the tensors show which matrices are quantized."""


Scheme: TypeAlias = "Float8Scheme | IntegerScheme | Mxfp4Scheme"


def grouping(bits: int, group: int | None, where: str) -> Grouping:
    """Return the grouping. Raises ModelError that starts with `where` and names the value that is
    not supported."""
    if bits not in (4, 8):
        raise ModelError(f"{where}: integers of {bits} bits are not supported, known: 4, 8")
    if group is not None and (group <= 0 or group % 32):
        raise ModelError(f"{where}: group_size {group} is not supported, only multiples of 32")
    return Grouping(4 if bits == 4 else 8, group)


def refuse_unless(value: object, known: tuple[object, ...], where: str) -> None:
    """Raise ModelError that starts with `where`, the name of a key, unless its value is known."""
    if value not in known:
        raise ModelError(f"{where} {value!r} is not supported, known: {', '.join(map(str, known))}")
