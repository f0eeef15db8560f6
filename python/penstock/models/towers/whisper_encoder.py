"""Whisper's encoder, which several families use for audio input."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Dense
from penstock.models.towers.audio_layers import AudioLayers, PackedNorm
from penstock.models.towers.audio_spec import WhisperEncoderSpec
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower_weights import TowerTensors, tower_linear

Tensor = TypeVar("Tensor")
Floats = npt.NDArray[np.float32]

_TAPS: Final = 3


class WhisperEncoder(Generic[Tensor]):
    """Whisper's encoder whose weights are packed for one kernel backend.

    - `root`: precedes the names of all tensors.
    - `last_norm`: the name of the norm after the last layer, without `root`.
    """

    def __init__(
        self,
        spec: WhisperEncoderSpec,
        tensors: TowerTensors,
        ops: Ops[Tensor],
        root: str,
        last_norm: str = "layer_norm",
    ) -> None:
        self._spec = spec
        self._convolutions = [
            _packed_convolution(tensors, ops, f"{root}conv{number}") for number in (1, 2)
        ]
        self._positions: Any = ops.constant(
            tensors.table(f"{root}embed_positions.weight", spec.positions)
        )
        self.last_norm: PackedNorm[Tensor] = PackedNorm.read(ops, tensors, root + last_norm)
        self._layers = AudioLayers(spec.body, tensors, ops, root, self.last_norm)

    def encode(
        self, ops: Ops[Tensor], features: Floats, budget: PieceBudget, rows: int | None = None
    ) -> Generator[None, None, tuple[Tensor, Tensor]]:
        """Encode the log-mel features [mels, frames] of a recording in pieces. Returns the states
        after the last norm and before it, [positions, W] each, one position per two frames.

        - `rows`: the positions that are not padding; only they attend to each other and are
          returned. None: all.
        """
        if rows is not None:  # the convolutions see one position further
            features = features[:, : 2 * rows + 2]
        x = yield from self._convolve(ops, features, budget)
        if rows is not None:
            x = x[:rows]
        return (yield from self._layers.run(ops, x, [len(x)], budget))

    def _convolve(
        self, ops: Ops[Tensor], features: Floats, budget: PieceBudget
    ) -> Generator[None, None, Any]:
        """Compute both convolutions and add the positions: [mels, F] -> [(F + 1) // 2, W]."""
        frames, width = features.shape[1], self._spec.body.width
        padded = np.zeros((frames + 2, self._spec.mels), np.float32)
        padded[1:-1] = features.T
        windows = np.lib.stride_tricks.sliding_window_view(padded, _TAPS, axis=0).swapaxes(1, 2)
        first: Any = ops.constant(np.zeros((frames + 3, width), np.float32))
        for at in budget.slices(frames, 2 * _TAPS * self._spec.mels * width):
            rows = windows[at]
            columns = ops.constant(np.ascontiguousarray(rows).reshape(len(rows), -1))
            piece = ops.gelu(ops.linear(columns, self._convolutions[0]))
            first[1 + at.start : 1 + at.stop] = piece
            yield
        count = (frames + 1) // 2
        second: Any = ops.constant(np.empty((count, width), np.float32))
        for at in budget.slices(count, 2 * _TAPS * width**2):
            rows = np.arange(at.start, at.stop)
            index = (2 * rows[:, None] + np.arange(_TAPS)).reshape(-1)
            seen: Any = ops.gather_rows(first, ops.constant(index.astype(np.int32)))
            piece = ops.gelu(ops.linear(seen.reshape(len(rows), -1), self._convolutions[1]))
            second[at] = piece + self._positions[at]
            yield
        return second


def _packed_convolution(tensors: TowerTensors, ops: Ops[Any], name: str) -> Any:
    """Return a convolution over time as a linear layer over _TAPS adjacent frames: the weight [W,
    C, taps] becomes [W, taps * C]."""
    weight = tensors.flattened(f"{name}.weight")
    taps = weight.data.reshape(len(weight.data), -1, _TAPS).swapaxes(1, 2)
    matrix = Dense(np.ascontiguousarray(taps).reshape(len(taps), -1), weight.dtype)
    return ops.pack_linear(tower_linear((matrix,), tensors.vector(f"{name}.bias")))
