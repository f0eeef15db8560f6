"""The convolutions that shorten a recording before Phi-4-multimodal's conformer.

Each has stride 2 over time and features. They are computed for blocks of results, each with the
inputs that it sees, because the first results of a long recording take hundreds of megabytes.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Dense, Linear
from penstock.models.towers.audio_convolution import TAPS, halved
from penstock.models.towers.phi4_audio_spec import Phi4AudioSpec
from penstock.models.towers.piece_budget import PieceBudget, most_rows
from penstock.models.towers.tower_weights import TowerTensors
from penstock.quant.dequantize import dequantize

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

_COLUMNS: Final = 16
"""The taps of the first convolution, padded for the kernels of products."""


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution of each channel over time and features, then a product over channels."""

    taps: list[Any]
    bias: Any
    single: Any


class Phi4Subsampling:
    """The convolutions, packed for one kernel backend."""

    def __init__(self, spec: Phi4AudioSpec, tensors: TowerTensors, ops: Ops[Any]) -> None:
        self._spec = spec
        self._mean = tensors.vector("encoder.encoder_embedding.global_mean")
        self._scale = tensors.vector("encoder.encoder_embedding.global_invstd")
        first = tensors.table("encoder.embed.conv.0.weight", spec.channels)
        first = np.pad(first, ((0, 0), (0, _COLUMNS - first.shape[1])))
        bias = tensors.vector("encoder.embed.conv.0.bias")
        self._first = ops.pack_linear(Linear((Dense(first, "f32"),), bias))
        self._others = [
            _read_convolution(tensors, ops, spec, *names) for names in spec.convolutions()
        ]
        self._out = ops.pack_linear(_output(tensors, spec))

    @staticmethod
    def bytes_of(spec: Phi4AudioSpec) -> int:
        """Return an upper bound of the bytes of activations."""
        rows = most_rows(spec.subsampling_operations)
        first = (rows << (spec.halvings - 1)) + (1 << spec.halvings)
        return 4 * 4 * first * halved(spec.mels, 1) * spec.channels

    def run(
        self, ops: Ops[Any], features: Floats, budget: PieceBudget
    ) -> Generator[None, None, Any]:
        """Return the positions of a recording: [frames, mels] -> [rows, W]."""
        normed = (features - self._mean) * self._scale
        count = self._spec.rows(len(features))
        states: Any = ops.constant(np.empty((count, self._spec.width), np.float32))
        for at in budget.slices(count, self._spec.subsampling_operations):
            states[at] = self._block(ops, normed, range(at.start, at.stop))
            yield
        return states

    def _block(self, ops: Ops[Any], features: Floats, rows: range) -> Any:
        """Return the positions `rows`."""
        spec = self._spec
        times = [rows]  # of the results of each convolution, the last one first
        for level in range(spec.halvings - 1, -1, -1):
            length = halved(len(features), level)
            times.append(range(max(2 * times[-1].start - 1, 0), min(2 * times[-1].stop, length)))
        inputs, *results = times[::-1]
        wide = spec.mels
        x: Any = self._convolve_features(ops, features[inputs.start : inputs.stop], inputs, results)
        for convolution, seen, made in zip(self._others, results, results[1:], strict=False):
            wide = halved(wide, 1)
            x = _convolve(ops, convolution, x, _taps(made, seen, wide))
        return ops.linear(x.reshape(len(rows), -1), self._out)

    def _convolve_features(
        self, ops: Ops[Any], features: Floats, inputs: range, results: list[range]
    ) -> Any:
        flat = np.append(features.reshape(-1), np.float32(0))
        taps = _taps(results[0], inputs, self._spec.mels)
        columns = np.zeros((len(taps), _COLUMNS), np.float32)
        columns[:, : taps.shape[1]] = flat[taps]
        return ops.linear(ops.constant(columns), self._first).clip(0)


def _convolve(ops: Ops[Any], convolution: _Convolution, x: Any, taps: Ints) -> Any:
    """Return the results [len(taps), C] of a convolution over the rows of `x`."""
    padded: Any = ops.constant(np.zeros((len(x) + 1, x.shape[1]), np.float32))
    padded[: len(x)] = x
    mixed = convolution.bias
    for index, weight in zip(taps.T, convolution.taps, strict=True):
        seen: Any = ops.gather_rows(padded, ops.constant(np.ascontiguousarray(index)))
        mixed = mixed + seen * weight
    products: Any = ops.linear(mixed, convolution.single)
    return products.clip(0)


def _taps(results: range, inputs: range, wide: int) -> Ints:
    """Return the inputs of each result of a convolution, [results, taps]: rows of [len(inputs) *
    wide + 1, C], of which the last one is zero.

    - `results`, `inputs`: the times of the results and of the rows.
    - `wide`: the features of each time of the rows.
    """
    offsets = np.arange(TAPS) - 1
    times = 2 * np.arange(results.start, results.stop)[:, None] + offsets - inputs.start
    columns = 2 * np.arange(halved(wide, 1))[:, None] + offsets
    index = times[:, None, :, None] * wide + columns[None, :, None, :]
    inside = ((times >= 0) & (times < len(inputs)))[:, None, :, None]
    inside = inside & ((columns >= 0) & (columns < wide))[None, :, None, :]
    taps: Ints = np.where(inside, index, len(inputs) * wide).reshape(-1, TAPS**2).astype(np.int32)
    return taps


def _read_convolution(
    tensors: TowerTensors, ops: Ops[Any], spec: Phi4AudioSpec, each: str, single: str
) -> _Convolution:
    taps = tensors.table(f"{each}.weight", spec.channels).T
    product = Linear((tensors.flattened(f"{single}.weight"),), tensors.vector(f"{single}.bias"))
    return _Convolution(
        [ops.constant(np.ascontiguousarray(tap)) for tap in taps],
        ops.constant(tensors.vector(f"{each}.bias")),
        ops.pack_linear(product),
    )


def _output(tensors: TowerTensors, spec: Phi4AudioSpec) -> Linear:
    """Return the last product. Its inputs are ordered by feature first, those of the file by
    channel first."""
    stored = dequantize(tensors.matrix("encoder.embed.out.weight"))
    ordered = stored.reshape(len(stored), spec.channels, -1).swapaxes(1, 2).reshape(len(stored), -1)
    bias = tensors.vector("encoder.embed.out.bias")
    return Linear((Dense(np.ascontiguousarray(ordered, np.float32), "f32"),), bias)
