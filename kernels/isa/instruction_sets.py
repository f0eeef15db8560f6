"""The instruction-set levels whose kernels serve one model on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.kernels.weights import Dense, Float8, Matrix


@dataclass(frozen=True, slots=True)
class RowRange:
    """`level` serves calls of at most `most_rows` rows; None: of any number."""

    most_rows: int | None
    level: str


@dataclass(frozen=True, slots=True)
class IsaSelection:
    """Three levels give a model its arithmetic: `products` (linear layers and experts), `attention`
    and `other` (norms, activations, rotary embedding, sampling, ...).

    The ranges, `linear` of linear layers, speed products up and change no bit: the level of a range
    serves a call only where the kernels can tell that it gives the bits of `products`. They ascend,
    and the last one is unlimited; without ranges `products` serves.
    """

    products: str
    attention: str
    other: str
    linear: tuple[RowRange, ...] = ()
    experts: tuple[RowRange, ...] = ()

    @classmethod
    def all_of(cls, level: str) -> IsaSelection:
        """Every kernel of one level."""
        return cls(level, level, level)

    @property
    def arithmetic(self) -> str:
        """Names what of a choice may change bits: "avx512", "avx512_bf16.avx512.avx512"."""
        levels = (self.products, self.attention, self.other)
        return levels[0] if len(set(levels)) == 1 else ".".join(levels)

    def by_rows(self) -> dict[str, list[tuple[int | None, str]]]:
        """The ranges as the extension takes them."""
        families = {"affine": self.linear, "dense": self.linear, "experts": self.experts}
        return {
            family: [(one.most_rows, one.level) for one in ranges]
            for family, ranges in families.items()
        }


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """Matrices [rows, columns] of a model that are stored alike. `pattern`: a few whole blocks that
    are stored so; `rows`: of the tallest one; `elements`: of all together."""

    pattern: Matrix
    rows: int
    columns: int
    elements: int


@dataclass(frozen=True, slots=True)
class KernelShapes:
    """What the speed of a model's kernels depends on. `heads`: query heads, KV heads, head
    dimension; `reach`: whether a token sees those after it; `experts`: how many there are, and how
    many of them a token takes; `inner`: columns between the products of a feed-forward."""

    forms: tuple[MatrixForm, ...]
    heads: tuple[int, int, int]
    cache_dtype: Literal["float16", "float32"]
    block_size: int
    inner: int
    reach: Literal["back", "both"] = "back"
    experts: tuple[int, int] | None = None


def form_name(pattern: Matrix) -> str:
    """How a matrix is stored: "f16", "4 bits in groups of 32, f16 scales and minima"."""
    if isinstance(pattern, Dense):
        return pattern.dtype
    if isinstance(pattern, Float8):
        return "f8"
    minima = " and minima" if pattern.minimum is not None else ""
    levels = "two-level " if pattern.super_scale is not None else f"{pattern.scale.dtype} "
    zero = f", zero {pattern.zero_point}" if pattern.zero_point else ""
    return f"{pattern.bits} bits in groups of {pattern.group}, {levels}scales{minima}{zero}"
