"""The quantization schemes of Hugging Face folders. Config readers return them, and checkpoints use
them to read the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.base.errors import ModelError

BLOCK = 128
"""The only block size of 8-bit floats that kernels support, apart from whole rows and whole
matrices."""

LayoutName = Literal["gptq", "gptq_v2", "awq", "packed", "int8", "mlx"]


@dataclass(frozen=True, slots=True)
class Float8Scheme:
    """A scheme of 8-bit floats. `block`: the number of rows and of columns that share a scale;
    None: whole rows or the whole matrix, depending on the shape of the scales."""

    block: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Grouping:
    """The width and grouping of integers. `group`: the number of columns of a row that share a
    scale, a multiple of 32; None: all columns."""

    bits: Literal[4, 8]
    group: int | None


@dataclass(frozen=True, slots=True)
class IntegerScheme:
    """A scheme of integers in groups.

    - `layout`: the order of integers and scales in the file.
    - `symmetric`: the config states that all zero points are the middle of the range.
    - `own`: module name -> grouping, for modules whose grouping differs.
    """

    layout: LayoutName
    grouping: Grouping
    symmetric: bool
    own: Mapping[str, Grouping] = field(default_factory=dict, compare=False)

    def grouping_of(self, module: str) -> Grouping:
        """Return the grouping of a module: its own if it has one, else the scheme's."""
        return self.own.get(module, self.grouping)


@dataclass(frozen=True, slots=True)
class Mxfp4Scheme:
    """The scheme MXFP4. The names of the tensors show which matrices are quantized."""


Scheme: TypeAlias = "Float8Scheme | IntegerScheme | Mxfp4Scheme"


def grouping(bits: int, group: int | None, where: str) -> Grouping:
    """Return the grouping of `group` columns (None: all columns) of `bits`-bit integers. Raises
    ModelError that starts with `where` and names the value that is not supported."""
    if bits not in (4, 8):
        raise ModelError(f"{where}: integers of {bits} bits are not supported, known: 4, 8")
    if group is not None and (group <= 0 or group % 32):
        raise ModelError(f"{where}: group_size {group} is not supported, only multiples of 32")
    return Grouping(4 if bits == 4 else 8, group)


def refuse_unless(value: object, known: tuple[object, ...], where: str) -> None:
    """Check that `value` is one of the `known` values. Raises ModelError that starts with `where`,
    the name of a key."""
    if value not in known:
        raise ModelError(f"{where} {value!r} is not supported, known: {', '.join(map(str, known))}")
