"""The instruction sets whose kernels serve one model on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.kernels.weights import Dense, Float8, Matrix


@dataclass(frozen=True, slots=True)
class RowRange:
    """The ISA `level` for calls of at most `most_rows` rows; None: any number. (The file of kept
    choices has the same field names.)"""

    most_rows: int | None
    level: str


@dataclass(frozen=True, slots=True)
class IsaSelection:
    """The ISAs of a model. Three give it its arithmetic: `products` (linear layers and experts),
    `attention` and `other` (norms, activations, rotary embedding, sampling, ...).

    The ranges of rows, `linear` and `experts`, make products faster without changing bits: the ISA
    of a range serves a call only if the kernels know that it gives the bits of `products`. They
    ascend, and the last is unlimited; without ranges `products` serves.
    """

    products: str
    attention: str
    other: str
    linear: tuple[RowRange, ...] = ()
    experts: tuple[RowRange, ...] = ()

    @classmethod
    def all_of(cls, isa: str) -> IsaSelection:
        """Return the selection of one ISA for every kernel."""
        return cls(isa, isa, isa)

    @property
    def arithmetic(self) -> str:
        """A name of the parts of a selection that may change bits: "avx512",
        "avx512_bf16.avx512.avx512"."""
        isas = (self.products, self.attention, self.other)
        return isas[0] if len(set(isas)) == 1 else ".".join(isas)

    def by_rows(self) -> dict[str, list[tuple[int | None, str]]]:
        """Return the ranges as the extension expects them."""
        families = {"affine": self.linear, "dense": self.linear, "experts": self.experts}
        return {
            family: [(one.most_rows, one.level) for one in ranges]
            for family, ranges in families.items()
        }


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """Matrices [rows, columns] of a model that are stored alike. `pattern`: a few whole blocks in
    that form; `rows`: of the tallest matrix; `elements`: total of all."""

    pattern: Matrix
    rows: int
    columns: int
    elements: int


@dataclass(frozen=True, slots=True)
class KernelShapes:
    """The shapes on which the speed of a model's kernels depends. `heads`: query heads, KV heads,
    head dimension; `reach`: "both" if a token sees later tokens; `experts`: number of experts, and
    of experts per token; `inner`: columns between the products of a feed-forward layer."""

    forms: tuple[MatrixForm, ...]
    heads: tuple[int, int, int]
    cache_dtype: Literal["float16", "float32"]
    block_size: int
    inner: int
    reach: Literal["back", "both"] = "back"
    experts: tuple[int, int] | None = None


def form_name(pattern: Matrix) -> str:
    """Describe how a matrix is stored: "f16", "4 bits in groups of 32, f16 scales and minima"."""
    if isinstance(pattern, Dense):
        return pattern.dtype
    if isinstance(pattern, Float8):
        return "f8"
    minima = " and minima" if pattern.minimum is not None else ""
    form = "two-level " if pattern.super_scale is not None else f"{pattern.scale.dtype} "
    zero = f", zero {pattern.zero_point}" if pattern.zero_point else ""
    return f"{pattern.bits} bits in groups of {pattern.group}, {form}scales{minima}{zero}"
