"""The audio tower of Qwen3-Omni: three convolutions over chunks of features, then transformer
layers over windows."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Dense, Linear
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.spec_limits import MAX_WIDTH, check_sizes
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.towers.audio_convolution import TAPS, halved, taps_of
from penstock.models.towers.audio_layers import AudioLayers, PackedNorm
from penstock.models.towers.audio_spec import AudioLayersSpec, layer_shapes, norm_shapes
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import TowerTensors, WeightType, find_root
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize

Tensor = TypeVar("Tensor")
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ChunkedAudioSpec:
    """The configuration of the tower. Media are features [mels, frames].

    - `roots`: the prefixes that may precede all names.
    - `channels`: channels of the convolutions.
    - `chunk`: frames that the convolutions see together.
    - `window_chunks`: chunks whose positions attend to each other.
    - `outputs`: the width of the language model.
    - `longest`: the most frames of a recording, for `scratch_bytes`.
    """

    body: AudioLayersSpec
    roots: tuple[str, ...]
    mels: int
    channels: int
    chunk: int
    window_chunks: int
    outputs: int
    longest: int = 360_000

    @property
    def kinds(self) -> frozenset[MediaKind]:
        return frozenset[MediaKind]({"audio"})

    def rows(self, frames: int) -> int:
        """Return the rows of a recording."""
        whole, rest = divmod(frames, self.chunk)
        return whole * halved(self.chunk) + halved(rest)

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where`."""
        self.body.check(where)
        limits = {
            "num_mel_bins": (self.mels, 1024),
            "downsample_hidden_size": (self.channels, MAX_WIDTH),
            "n_window": (self.chunk, 1 << 16),
            "n_window_infer": (self.window_chunks, 1 << 16),
            "output_dim": (self.outputs, MAX_WIDTH),
        }
        check_sizes(where, limits)

    def scratch_bytes(self) -> int:
        positions = self.rows(self.longest)
        columns = TAPS**2 * self.channels * halved(self.mels, 2) * halved(self.chunk, 2)
        return 4 * (positions * 8 * self.body.width + 2 * columns)

    def open(self, checkpoint: Checkpoint, dtype: WeightType) -> LoadedChunkedAudio:
        """Find and check the tensors; see TowerSpec."""
        root = find_root(self.roots, "conv2d1.weight", checkpoint)
        return LoadedChunkedAudio(self, TowerTensors(checkpoint, root, self._shapes(), dtype))

    def _shapes(self) -> dict[str, Shape]:
        width, channels = self.body.width, self.channels
        shapes: dict[str, Shape] = {}
        for number, inputs in enumerate((1, channels, channels), 1):
            shapes[f"conv2d{number}.weight"] = (channels, inputs, TAPS, TAPS)
            shapes[f"conv2d{number}.bias"] = (channels,)
        shapes["conv_out.weight"] = (width, channels * halved(self.mels))
        shapes["proj1.weight"], shapes["proj1.bias"] = (width, width), (width,)
        shapes["proj2.weight"], shapes["proj2.bias"] = (self.outputs, width), (self.outputs,)
        return shapes | norm_shapes("ln_post", width) | layer_shapes(self.body, "")


@dataclass(frozen=True, slots=True)
class LoadedChunkedAudio:
    """The tensors of the tower."""

    spec: ChunkedAudioSpec
    tensors: TowerTensors

    @property
    def weight_bytes(self) -> int:
        return self.tensors.size_bytes

    def build(self, ops: Ops[Any]) -> ChunkedAudioTower[Any]:
        return ChunkedAudioTower(self.spec, self.tensors, ops)


class ChunkedAudioTower(Generic[Tensor]):
    """The tower whose weights are packed for one kernel backend."""

    def __init__(self, spec: ChunkedAudioSpec, tensors: TowerTensors, ops: Ops[Tensor]) -> None:
        self._spec = spec
        self._convolutions = [_convolution(tensors, ops, n) for n in (1, 2, 3)]
        self._out = ops.pack_linear(_frequencies_first(tensors, spec))
        self._positions: Any = ops.constant(sinusoids(halved(spec.chunk), spec.body.width))
        last: PackedNorm[Tensor] = PackedNorm.read(ops, tensors, "ln_post")
        self._layers = AudioLayers(spec.body, tensors, ops, "", last)
        self._projections = [
            ops.pack_linear(tensors.linear([name], biased=True)) for name in ("proj1", "proj2")
        ]

    def encode(
        self, ops: Ops[Tensor], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Tensor]]:
        spec, features = self._spec, media.array()
        frames = features.shape[1]
        rows = spec.rows(frames)
        longest = min(frames, spec.chunk)  # shorter chunks are padded to the longest one
        x: Any = ops.constant(np.empty((rows, spec.body.width), np.float32))
        filled = 0
        for begin in range(0, frames, spec.chunk):
            chunk = np.zeros((spec.mels, longest), np.float32)
            part = features[:, begin : begin + spec.chunk]
            chunk[:, : part.shape[1]] = part
            count = halved(part.shape[1])
            encoded = yield from self._convolve(ops, chunk, budget)
            x[filled : filled + count] = encoded[:count] + self._positions[:count]
            filled += count
        window = halved(longest) * spec.window_chunks
        lengths = [min(window, rows - start) for start in range(0, rows, window)]
        states, _ = yield from self._layers.run(ops, x, lengths, budget)
        return EncodedMedia((yield from self._project(ops, states, budget)))

    def _convolve(
        self, ops: Ops[Tensor], chunk: Floats, budget: PieceBudget
    ) -> Generator[None, None, Any]:
        """Return the positions of a chunk: [mels, F] -> [halved(F), W]."""
        channels, grid = self._spec.channels, chunk.shape
        values = np.append(chunk.reshape(-1), np.float32(0))
        x: Any = None
        for weight in self._convolutions:
            taps = taps_of(*grid)
            made: Any = ops.constant(np.zeros((len(taps) + 1, channels), np.float32))
            inputs = 1 if x is None else channels
            for at in budget.slices(len(taps), 2 * TAPS**2 * inputs * channels):
                columns = _features(ops, values, taps[at]) if x is None else _seen(ops, x, taps[at])
                made[at] = ops.gelu(ops.linear(columns, weight))
                yield
            x = made  # its last row is zero: the surroundings of the next convolution
            grid = halved(grid[0], 1), halved(grid[1], 1)
        by_time = np.arange(len(x) - 1, dtype=np.int32).reshape(grid).T.reshape(-1)
        ordered: Any = ops.gather_rows(x, ops.constant(np.ascontiguousarray(by_time)))
        return ops.linear(ordered.reshape(grid[1], -1), self._out)

    def _project(
        self, ops: Ops[Tensor], states: Any, budget: PieceBudget
    ) -> Generator[None, None, Tensor]:
        """Return the rows of the language model for the states after the last norm."""
        spec, (first, second) = self._spec, self._projections
        rows: Any = ops.constant(np.empty((len(states), spec.outputs), np.float32))
        operations = 2 * spec.body.width * (spec.body.width + spec.outputs)
        for at in budget.slices(len(states), operations):
            rows[at] = ops.linear(ops.gelu(ops.linear(states[at], first)), second)
            yield
        result: Tensor = rows
        return result


def _features(ops: Ops[Any], values: Floats, taps: Ints) -> Any:
    """Return the inputs of the first convolution, [N, taps] with zeros to a multiple of 16, for
    `values` [F]."""
    columns = values[taps]
    return ops.constant(np.pad(columns, ((0, 0), (0, -columns.shape[1] % 16))))


def _seen(ops: Ops[Any], x: Any, taps: Ints) -> Any:
    """Return the inputs of a later convolution, [N, taps * C], for `x` [M, C]."""
    rows = ops.gather_rows(x, ops.constant(np.ascontiguousarray(taps.reshape(-1))))
    return rows.reshape(len(taps), -1)


def sinusoids(length: int, width: int) -> Floats:
    """Return the positions [length, width]: sines, then cosines, of geometric wavelengths up to
    10,000 times 2 pi."""
    half = width // 2
    step = np.float32(np.log(10_000) / (half - 1))
    rates = np.exp(-step * np.arange(half, dtype=np.float32))
    angles = np.arange(length, dtype=np.float32)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _convolution(tensors: TowerTensors, ops: Ops[Any], number: int) -> Any:
    """Return a convolution as a linear layer over the taps: [C, I, taps] becomes [C, taps * I]."""
    stored = dequantize(tensors.flattened(f"conv2d{number}.weight"))
    weight = stored.reshape(len(stored), -1, TAPS**2).swapaxes(1, 2).reshape(len(stored), -1)
    weight = np.pad(weight, ((0, 0), (0, -weight.shape[1] % 16)))
    matrix = Dense(np.ascontiguousarray(weight, np.float32), "f32")
    return ops.pack_linear(Linear((matrix,), tensors.vector(f"conv2d{number}.bias")))


def _frequencies_first(tensors: TowerTensors, spec: ChunkedAudioSpec) -> Linear:
    """Return the linear layer after the convolutions, with its columns ordered by frequency, then
    by channel."""
    stored = dequantize(tensors.matrix("conv_out.weight"))
    ordered = stored.reshape(len(stored), spec.channels, -1).swapaxes(1, 2)
    matrix = np.ascontiguousarray(ordered.reshape(len(stored), -1), np.float32)
    return Linear((Dense(matrix, "f32"),), None)
