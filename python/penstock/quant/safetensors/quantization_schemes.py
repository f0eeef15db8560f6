"""The quantization schemes of Hugging Face folders. Config readers return them, and checkpoints use
them to read the tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.base.errors import ModelError

LayoutName = Literal[
    "gptq",
    "gptq_v2",
    "awq",
    "awq_gemv",
    "awq_gemv_fast",
    "llm_awq",
    "awq_marlin",
    "marlin",
    "packed",
    "int8",
    "mlx",
    "metal",
    "nvfp4",
    "nvfp4_modelopt",
    "nvfp4_turned",
    "mxfp4",
    "mxfp4_modelopt",
    "mxfp6",
    "mxfp6_quark",
    "mlx_nvfp4",
    "mlx_mxfp4",
    "mlx_mxfp8",
    "hqq",
    "hqq_rows",
    "bnb_4bit",
    "bnb_int8",
    "torchao_int4",
    "quark_int4",
    "quark_uint4",
    "quark_int4_in_order",
    "quark_uint4_in_order",
    "quark_int8",
]


@dataclass(frozen=True, slots=True)
class Float8Scheme:
    """A scheme of 8-bit floats. `block`: the number of rows and of columns that share a scale;
    None: whole rows, the whole matrix, or groups of 32 columns with powers of two (MXFP8),
    depending on the shape and type of the scales."""

    block: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Grouping:
    """The width and grouping of integers. `bits`: 1 to 8. `group`: the number of columns of a row
    that share a scale; None: all columns."""

    bits: int
    group: int | None

    @property
    def held_bits(self) -> Literal[4, 8]:
        """The bits of an integer in `Affine`."""
        return 4 if self.bits <= 4 else 8


@dataclass(frozen=True, slots=True)
class IntegerScheme:
    """A scheme of integers in groups.

    - `layouts`: the orders of integers and scales in the file. Each matrix has one of them.
    - `grouping`: that of all modules; None: the shapes of a module's tensors show it.
    - `symmetric`: the config states that all zero points are the middle of the range.
    - `own`: module name -> grouping, for modules whose grouping differs.
    """

    layouts: tuple[LayoutName, ...]
    grouping: Grouping | None = None
    symmetric: bool = False
    own: Mapping[str, Grouping] = field(default_factory=dict, compare=False)

    def grouping_of(self, module: str) -> Grouping | None:
        """Return the grouping of a module: its own if it has one, else the scheme's."""
        return self.own.get(module, self.grouping)


@dataclass(frozen=True, slots=True)
class Mxfp4Scheme:
    """The scheme MXFP4. The names of the tensors show which matrices are quantized."""


@dataclass(frozen=True, slots=True)
class MixedScheme:
    """Some modules have integers, others 8-bit floats."""

    integers: IntegerScheme
    floats: Float8Scheme


Scheme: TypeAlias = "Float8Scheme | IntegerScheme | Mxfp4Scheme | MixedScheme"


def joined(schemes: Sequence[Float8Scheme | IntegerScheme], where: str) -> Scheme:
    """Return one scheme for all groups of modules. If groups of integers differ, the shapes of the
    tensors show the bits and groups of each module. Raises ModelError that starts with `where` if
    groups of 8-bit floats differ."""
    floats = {one for one in schemes if isinstance(one, Float8Scheme)}
    integers = [one for one in schemes if isinstance(one, IntegerScheme)]
    if len(floats) > 1:
        raise ModelError(f"{where} must describe one form of 8-bit floats")
    if not integers:
        return floats.pop()
    groupings = {one.grouping for one in integers}
    whole = IntegerScheme(
        tuple(dict.fromkeys(name for one in integers for name in one.layouts)),
        groupings.pop() if len(groupings) == 1 else None,
        all(one.symmetric for one in integers),
    )
    return MixedScheme(whole, floats.pop()) if floats else whole


def grouping(bits: int, group: int | None, known: tuple[int, ...], where: str) -> Grouping:
    """Return the grouping of `group` columns (None: all columns) of `bits`-bit integers. Raises
    ModelError that starts with `where` and names the value that is not supported."""
    if bits not in known:
        numbers = ", ".join(map(str, known))
        raise ModelError(f"{where}: integers of {bits} bits are not supported, known: {numbers}")
    if group is not None and (group <= 0 or group % 32):
        raise ModelError(f"{where}: group_size {group} is not supported, only multiples of 32")
    return Grouping(bits, group)


def float8_block(size: object, where: str) -> tuple[int, int]:
    """Return the number of rows and of columns that share a scale of 8-bit floats. Raises
    ModelError that starts with `where`, the name of a key, unless `size` has two positive
    numbers."""
    match size:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise ModelError(
        f"{where} {size} is not supported: a block of 8-bit floats has two positive sizes"
    )


def refuse_unless(value: object, known: tuple[object, ...], where: str) -> None:
    """Check that `value` is one of the `known` values. Raises ModelError that starts with `where`,
    the name of a key."""
    if value not in known:
        raise ModelError(f"{where} {value!r} is not supported, known: {', '.join(map(str, known))}")
