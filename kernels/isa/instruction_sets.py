"""The selection of the instruction sets (ISAs) whose kernels compute a model on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from penstock.kernels.weights import Dense, Float8, Matrix

TILES: Final = ("amx", "emulated_amx")
"""The ISAs with bf16 tiles."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """The ISA for calls of up to a number of rows. The file of saved choices has the same field
    names.

    `most_rows`: the largest number of rows; None: any number.
    `level`: the ISA.
    """

    most_rows: int | None
    level: str


@dataclass(frozen=True, slots=True)
class IsaSelection:
    """The ISAs of a model. `products`, `attention`, `other` and `prompts` determine the bits of its
    results.

    `products`: ISA of linear layers and experts.
    `attention`: ISA of attention.
    `other`: ISA of all other ops (norms, activations, rotary embedding, sampling, ...).
    `linear`, `experts`: ISAs that compute products faster for some numbers of rows. Ranges ascend,
        and the last has no limit. The ISA of a range is used only if its kernels give the same bits
        as `products`. Without ranges, `products` is used.
    `prompts`: ISA that multiplies prompt tokens by integer weights in bf16 tiles, one of `TILES`;
        "": prompt tokens are multiplied like all others.
    """

    products: str
    attention: str
    other: str
    linear: tuple[RowRange, ...] = ()
    experts: tuple[RowRange, ...] = ()
    prompts: str = ""

    @classmethod
    def all_of(cls, isa: str) -> IsaSelection:
        """Return a selection with the same ISA for all kernels."""
        return cls(isa, isa, isa, prompts=isa if isa in TILES else "")

    @property
    def arithmetic(self) -> str:
        """The name of the ISAs that determine the bits of results: "avx512" if they are equal, else
        like "avx512_bf16.avx512.avx512"; with "+amx" after it if prompts have their own."""
        isas = (self.products, self.attention, self.other)
        name = isas[0] if len(set(isas)) == 1 else ".".join(isas)
        return f"{name}+{self.prompts}" if self.prompts else name

    def by_rows(self) -> dict[str, list[tuple[int | None, str]]]:
        """Return kernel family -> ranges of rows, as the extension module expects them."""
        families = {"affine": self.linear, "dense": self.linear, "experts": self.experts}
        return {
            family: [(one.most_rows, one.level) for one in ranges]
            for family, ranges in families.items()
        }


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """The matrices of a model that have the same storage format and number of columns.

    `pattern`: a small matrix in this format, of a few whole blocks.
    `rows`: rows of the tallest matrix.
    `columns`: columns of each matrix.
    `elements`: number of elements of all matrices together.
    """

    pattern: Matrix
    rows: int
    columns: int
    elements: int


@dataclass(frozen=True, slots=True)
class KernelShapes:
    """The shapes on which the speed of a model's kernels depends.

    `forms`: the model's matrices by storage format.
    `heads`: query heads, KV heads, head dimension.
    `inner`: columns between the two matrix products of a feed-forward layer.
    `reach`: "back" for causal attention; "both" if a token also sees later tokens.
    `experts`: number of experts, and experts per token; None if there are none.
    """

    forms: tuple[MatrixForm, ...]
    heads: tuple[int, int, int]
    cache_dtype: Literal["float16", "float32", "int8"]
    block_size: int
    inner: int
    reach: Literal["back", "both"] = "back"
    experts: tuple[int, int] | None = None


def form_name(pattern: Matrix) -> str:
    """Describe the storage format of a matrix: "f16", "4 bits in groups of 32, float16 scales and
    minima"."""
    if isinstance(pattern, Dense):
        return pattern.dtype
    if isinstance(pattern, Float8):
        return "f8"
    minima = " and minima" if pattern.minimum is not None else ""
    form = "two-level " if pattern.super_scale is not None else f"{pattern.scale.dtype} "
    zero = f", zero {pattern.zero_point}" if pattern.zero_point else ""
    return f"{pattern.bits} bits in groups of {pattern.group}, {form}scales{minima}{zero}"
