"""The arithmetic of the table of `python -m bench lab`: floors, winners, and instruction sets
(ISAs) that are slower than the next narrower one. It measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock.quant.gguf.ggml_types import TYPES

Operands = Literal["4", "6", "8", "float"]
"""The operands of multiply-adds: integers of at most so many bits times int8; or floats."""

OPERANDS: Final[Mapping[str, Operands]] = {
    "Q4_0": "4",
    "Q4_1": "4",
    "Q4_K": "4",
    "Q6_K": "6",
    "Q8_0": "8",
    "MXFP4": "6",  # sixteen values within a range of 25
    "BF16": "float",
}
"""Type of weights, as GGML names it -> the narrowest operands that represent it exactly."""

SLOWER: Final = 1.05
"""An ISA is reported if it takes more than this many times the time of the next narrower one. A
smaller difference is noise."""


@dataclass(frozen=True)
class Product:
    """A matrix product.

    - `weights`: the type of the weights.
    - `shape`: output columns and input columns, N and K.
    - `rows`: rows of the input.
    """

    weights: str
    shape: tuple[int, int]
    rows: int

    @property
    def multiply_adds(self) -> int:
        return self.rows * self.shape[0] * self.shape[1]

    @property
    def moved_bytes(self) -> float:
        """The bytes of the weights, as in a file, and of float32 inputs and outputs."""
        outputs, inputs = self.shape
        weights = outputs * inputs * TYPES[self.weights].file_bits / 8
        return weights + 4.0 * self.rows * (outputs + inputs)


@dataclass(frozen=True)
class Limits:
    """The limits of the processor with all threads.

    - `read_bytes_s`: bytes read from memory per second.
    - `multiply_adds_s`: ISA -> operands -> multiply-adds in registers per second. Empty for an ISA
      whose limit is unknown: its floor then counts memory alone.
    """

    read_bytes_s: float
    multiply_adds_s: Mapping[str, Mapping[str, float]]

    def memory_s(self, product: Product) -> float:
        return product.moved_bytes / self.read_bytes_s

    def arithmetic_s(self, product: Product, isa: str) -> float:
        rate = self.multiply_adds_s.get(isa, {}).get(OPERANDS[product.weights])
        return 0.0 if rate is None else product.multiply_adds / rate

    def floor_s(self, product: Product, isa: str) -> float:
        """Return the least time of a product with the instructions of `isa`."""
        return max(self.memory_s(product), self.arithmetic_s(product, isa))


@dataclass(frozen=True)
class Measured:
    """The times of a product. `seconds`: ISA -> median, the narrowest ISA first."""

    product: Product
    seconds: Mapping[str, float]

    @property
    def ranked(self) -> list[str]:
        """The ISAs, the fastest first."""
        return sorted(self.seconds, key=self.seconds.__getitem__)

    @property
    def winner(self) -> str:
        return self.ranked[0]

    @property
    def next_ratio(self) -> float | None:
        """The time of the second fastest ISA divided by that of the fastest; None if there is only
        one."""
        if len(self.seconds) < 2:
            return None
        first, second = self.ranked[:2]
        return self.seconds[second] / self.seconds[first]

    def floor_share(self, limits: Limits) -> float:
        """Return the share of the winner's time that is its floor."""
        return limits.floor_s(self.product, self.winner) / self.seconds[self.winner]

    def bound(self, limits: Limits) -> Literal["memory", "arithmetic"]:
        """Return which limit sets the winner's floor."""
        memory_s = limits.memory_s(self.product)
        return "memory" if memory_s >= limits.floor_s(self.product, self.winner) else "arithmetic"


@dataclass(frozen=True)
class Cliff:
    """A product for which `isa` takes `ratio` times as long as `below`, the next narrower ISA."""

    product: Product
    isa: str
    below: str
    ratio: float


def cliffs(measured: Sequence[Measured]) -> list[Cliff]:
    """Return the ISAs that are slower than the next narrower one, the worst first."""
    found = [
        Cliff(one.product, isa, below, one.seconds[isa] / one.seconds[below])
        for one in measured
        for below, isa in zip(list(one.seconds)[:-1], list(one.seconds)[1:], strict=True)
    ]
    slower = [cliff for cliff in found if cliff.ratio > SLOWER]
    return sorted(slower, key=lambda cliff: -cliff.ratio)


def table(measured: Sequence[Measured], limits: Limits) -> str:
    """Return a line for each product, as a table in Markdown."""
    head = (
        "| weights | N x K | rows | winner | us | next / winner | share of the floor | bound by |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for one in measured:
        ratio = "" if one.next_ratio is None else f"{one.next_ratio:.2f}"
        cells = [
            one.product.weights,
            _shape(one.product),
            str(one.product.rows),
            one.winner,
            f"{1e6 * one.seconds[one.winner]:.1f}",
            ratio,
            f"{one.floor_share(limits):.0%}",
            one.bound(limits),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cliff_lines(measured: Sequence[Measured]) -> str:
    """Return a line for each ISA that is slower than the next narrower one, or a line that says
    that there is none."""
    if all(len(one.seconds) < 2 for one in measured):
        return "One instruction set: there is no narrower one to compare with."
    found = cliffs(measured)
    if not found:
        return f"No instruction set takes over {SLOWER} times the time of the next narrower one."
    return "\n".join(
        f"SLOWER: {cliff.isa} takes {cliff.ratio:.2f} times the time of {cliff.below}: "
        f"{cliff.product.weights}, {_shape(cliff.product)}, {_rows(cliff.product.rows)}"
        for cliff in found
    )


def _shape(product: Product) -> str:
    return f"{product.shape[0]} x {product.shape[1]}"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
