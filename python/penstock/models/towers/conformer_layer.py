"""A layer of the conformers of Gemma 3n and Gemma 4. Attention and the convolution over time are
small and computed with NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.towers.conformer_attention import ConformerAttention
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower_weights import TowerTensors
from penstock.quant.dequantize import dequantize

Floats = npt.NDArray[np.float32]

EPS: Final = 1e-6
_RESIDUAL: Final = np.float32(0.5)
_LIMITS: Final = ("input_min", "input_max", "output_min", "output_max")
_CLIPPED: Final = ".linear"
"""Follows the name of a linear layer whose limits are beside it."""


@dataclass(frozen=True, slots=True)
class FeedNames:
    """The names of a feed-forward's tensors without `.weight`."""

    norm: str
    up: str
    down: str
    post_norm: str


@dataclass(frozen=True, slots=True)
class ConformerNames:
    """The names of a layer's tensors, without `.weight` except for `dim_scale`.

    - `relative`: the projection of distances. `dim_scale`: the scale of each query element.
    - `start`, `taps`, `middle_norm`, `end`: the parts of the gated convolution.
    """

    first: FeedNames
    attention_norm: str
    qkv: tuple[str, str, str]
    relative: str
    dim_scale: str
    output: str
    attention_post_norm: str
    convolution_norm: str
    start: str
    taps: str
    middle_norm: str
    end: str
    last: FeedNames
    last_norm: str

    def linears(self) -> dict[str, tuple[int, int]]:
        """Return the (outputs, inputs) of each linear layer in widths."""
        names = dict.fromkeys((*self.qkv, self.output, self.end), (1, 1))
        names[self.start] = (2, 1)
        for feed in (self.first, self.last):
            names |= {feed.up: (4, 1), feed.down: (1, 4)}
        return names

    def norms(self) -> tuple[str, ...]:
        """Return the names of all norms."""
        feeds = [name for feed in (self.first, self.last) for name in (feed.norm, feed.post_norm)]
        around = (self.attention_norm, self.attention_post_norm, self.convolution_norm)
        return (*feeds, *around, self.middle_norm, self.last_norm)


@dataclass(frozen=True, slots=True)
class ConformerSizes:
    """The sizes of a layer.

    - `kernel`: positions of the convolution over time.
    - `context`: positions that have a relative key, the own one included.
    - `visible`: how many of them attention sees.
    - `chunk`: positions whose attention is computed together.
    - `logit_cap`: attention scores are capped smoothly at this size.
    - `key_scale`: factor of the keys.
    - `clipped`: linear layers limit their inputs and outputs.
    """

    width: int
    heads: int
    kernel: int
    context: int
    visible: int
    chunk: int
    logit_cap: float
    key_scale: float
    clipped: bool

    def shapes(self, names: ConformerNames) -> dict[str, Shape]:
        """Return the names and shapes of a layer's tensors."""
        width = self.width
        shapes: dict[str, Shape] = {f"{name}.weight": (width,) for name in names.norms()}
        for name, (rows, columns) in names.linears().items():
            shapes[f"{name}.weight"] = (rows * width, columns * width)
            if self.clipped:
                root = name.removesuffix(_CLIPPED)
                shapes |= {f"{root}.{limit}": () for limit in _LIMITS}
        shapes[f"{names.taps}.weight"] = (width, 1, self.kernel)
        shapes[f"{names.relative}.weight"] = (width, width)
        shapes[names.dim_scale] = (width // self.heads,)
        return shapes


class ConformerLayer:
    """A layer whose weights are packed for one kernel backend.

    - `prefix`: precedes all names.
    - `positions`: of the distances of the context, [context, W].
    """

    def __init__(
        self,
        sizes: ConformerSizes,
        names: ConformerNames,
        tensors: TowerTensors,
        ops: Ops[Any],
        prefix: str,
        positions: Floats,
    ) -> None:
        self._sizes = sizes
        self._names = names
        self._linears = {
            name: _ClippedLinear(tensors, ops, prefix + name, clipped=sizes.clipped)
            for name in names.linears()
        }
        self._norms = {name: tensors.vector(f"{prefix}{name}.weight") for name in names.norms()}
        self._taps = tensors.table(f"{prefix}{names.taps}.weight", sizes.width)
        relative = dequantize(tensors.matrix(f"{prefix}{names.relative}.weight"))
        scale = np.logaddexp(0, tensors.vector(prefix + names.dim_scale))
        head_dim = sizes.width // sizes.heads
        self._attention = ConformerAttention(
            heads=sizes.heads,
            chunk=sizes.chunk,
            context=sizes.context,
            visible=sizes.visible,
            cap=sizes.logit_cap,
            query_scale=(scale * (head_dim**-0.5 / math.log(2))).astype(np.float32),
            key_scale=sizes.key_scale,
            relative=positions @ relative.T,
        )

    def run(self, ops: Ops[Any], x: Floats, budget: PieceBudget) -> Generator[None, None, Floats]:
        """Compute the layer: [N, W] -> [N, W]."""
        names, width = self._names, self._sizes.width
        feed = 16 * width**2
        x = yield from in_pieces(
            x, width, feed, budget, lambda rows, _: self._feed(ops, rows, names.first)
        )
        x = yield from self._attend(ops, x, budget)
        x = yield from self._convolve(ops, x, budget)
        return (
            yield from in_pieces(
                x,
                width,
                feed,
                budget,
                lambda rows, _: self._norm(ops, self._feed(ops, rows, names.last), names.last_norm),
            )
        )

    def _attend(
        self, ops: Ops[Any], x: Floats, budget: PieceBudget
    ) -> Generator[None, None, Floats]:
        names, width = self._names, self._sizes.width

        def qkv(rows: Floats, _: slice) -> Floats:
            normed = self._norm(ops, rows, names.attention_norm)
            return np.concatenate([self._linears[one](ops, normed) for one in names.qkv], axis=1)

        joined = yield from in_pieces(x, 3 * width, 6 * width**2, budget, qkv)
        q, k, v = (np.ascontiguousarray(part) for part in np.split(joined, 3, axis=1))
        seen = self._attention(q, k, v)
        yield

        def output(rows: Floats, at: slice) -> Floats:
            mixed = self._linears[names.output](ops, seen[at])
            total: Floats = rows + self._norm(ops, mixed, names.attention_post_norm)
            return total

        return (yield from in_pieces(x, width, 2 * width**2, budget, output))

    def _feed(self, ops: Ops[Any], x: Floats, names: FeedNames) -> Floats:
        inner = self._norm(ops, x, names.norm)
        inner = _silu(self._linears[names.up](ops, inner))
        inner = self._linears[names.down](ops, inner)
        total: Floats = x + self._norm(ops, inner, names.post_norm) * _RESIDUAL
        return total

    def _convolve(
        self, ops: Ops[Any], x: Floats, budget: PieceBudget
    ) -> Generator[None, None, Floats]:
        """Compute the gated convolution over the last `kernel` positions and add it."""
        names, kernel, width = self._names, self._sizes.kernel, self._sizes.width

        def first(rows: Floats, _: slice) -> Floats:
            return self._linears[names.start](ops, self._norm(ops, rows, names.convolution_norm))

        start = yield from in_pieces(x, 2 * width, 4 * width**2, budget, first)
        values, gates = np.split(start, 2, axis=1)
        padded = np.pad(values / (1 + np.exp(-gates)), ((kernel - 1, 0), (0, 0)))
        mixed = np.zeros_like(x)
        for tap in range(kernel):
            mixed += padded[tap : tap + len(x)] * self._taps[:, tap]
        yield

        def last(rows: Floats, at: slice) -> Floats:
            inner = _silu(self._norm(ops, mixed[at], names.middle_norm))
            total: Floats = rows + self._linears[names.end](ops, inner)
            return total

        return (yield from in_pieces(x, width, 2 * width**2, budget, last))

    def _norm(self, ops: Ops[Any], x: Floats, name: str) -> Floats:
        normed: Floats = ops.rms_norm(np.ascontiguousarray(x), self._norms[name], EPS)
        return normed


def in_pieces(
    x: Floats,
    width: int,
    row_operations: int,
    budget: PieceBudget,
    compute: Callable[[Floats, slice], Floats],
) -> Generator[None, None, Floats]:
    """Return the results [N, width] of `compute`, which is called with the rows of each piece of
    `x` [N, W] and their place."""
    results = np.empty((len(x), width), np.float32)
    for at in budget.slices(len(x), row_operations):
        results[at] = compute(x[at], at)
        yield
    return results


class _ClippedLinear:
    """A linear layer that limits its inputs and outputs."""

    def __init__(self, tensors: TowerTensors, ops: Ops[Any], name: str, *, clipped: bool) -> None:
        self._weight = ops.pack_linear(tensors.linear([name], biased=False))
        self._limits: list[float] | None = None
        if clipped:
            root = name.removesuffix(_CLIPPED)
            self._limits = [float(tensors.vector(f"{root}.{limit}")[0]) for limit in _LIMITS]

    def __call__(self, ops: Ops[Any], x: Floats) -> Floats:
        if self._limits is None:
            plain: Floats = ops.linear(x, self._weight)
            return plain
        least_in, most_in, least_out, most_out = self._limits
        y: Floats = ops.linear(np.clip(x, least_in, most_in), self._weight)
        return np.clip(y, least_out, most_out)


def _silu(x: Floats) -> Floats:
    activated: Floats = x / (1 + np.exp(-x))
    return activated
