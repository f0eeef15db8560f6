"""How the matrices of a Hugging Face folder are stored, as its config says: what a reader of the
config makes and a checkpoint takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.base.errors import ModelError

BLOCK = 128
"""The block sizes of 8-bit floats that kernels know are this, and whole rows or matrices."""

LayoutName = Literal["gptq", "gptq_v2", "awq", "packed", "int8", "mlx"]


@dataclass(frozen=True, slots=True)
class Float8Scheme:
    """`block`: rows and columns that share a scale; None: whole rows, or all, as the shape of the
    scales says."""

    block: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Grouping:
    """`group`: columns of a row that share a scale, a multiple of 32; None: all of them."""

    bits: Literal[4, 8]
    group: int | None


@dataclass(frozen=True, slots=True)
class IntegerScheme:
    """`layout`: the order in which integers and scales lie. `symmetric`: the config says that all
    zero points are the middle. `own`: of modules that differ in their groups, by name."""

    layout: LayoutName
    grouping: Grouping
    symmetric: bool
    own: Mapping[str, Grouping] = field(default_factory=dict, compare=False)

    def grouping_of(self, module: str) -> Grouping:
        """That of one module."""
        return self.own.get(module, self.grouping)


@dataclass(frozen=True, slots=True)
class Mxfp4Scheme:
    """Which matrices are MXFP4, their tensors say."""


Scheme: TypeAlias = "Float8Scheme | IntegerScheme | Mxfp4Scheme"


def grouping(bits: int, group: int | None, where: str) -> Grouping:
    """Raises ModelError that opens with `where` and names what is not supported."""
    if bits not in (4, 8):
        raise ModelError(f"{where}: integers of {bits} bits are not supported, known: 4, 8")
    if group is not None and (group <= 0 or group % 32):
        raise ModelError(f"{where}: group_size {group} is not supported, multiples of 32 are")
    return Grouping(4 if bits == 4 else 8, group)


def refuse_unless(value: object, known: tuple[object, ...], where: str) -> None:
    """Raise ModelError that opens with `where`, the name of a key, unless its value is known."""
    if value not in known:
        raise ModelError(f"{where} {value!r} is not supported, known: {', '.join(map(str, known))}")
