"""Reads gpt-oss safetensors folders, and splits their expert tensors into gate, up and down tensors
as in other models.

In these folders, gate and up are one tensor whose rows alternate: gate 0, up 0, gate 1, ... Float
weights are stored transposed, [E, inputs, outputs]; MXFP4 weights are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, Matrix
from penstock.quant.checkpoint import Checkpoint, TensorInfo
from penstock.quant.safetensors.mxfp4_checkpoint import ALL_ROWS, MXFP4, Mxfp4Checkpoint

FUSED_GATE_UP: Final = "mlp.experts.gate_up_proj"
"""The suffix of the names of fused gate and up tensors."""

_DOWN: Final = "mlp.experts.down_proj"
_PARTS: Final = {
    FUSED_GATE_UP: {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)},
    _DOWN: {"down_proj": ALL_ROWS},
}
_BIAS: Final = "_bias"


@dataclass(frozen=True, slots=True)
class _Part:
    """A gate, up or down projection: the output rows `rows` of the tensor `stored`."""

    stored: TensorInfo
    rows: slice


class GptOssCheckpoint:
    """A checkpoint whose expert tensors are those of `checkpoint`, split into gate, up and down.

    The names and shapes are `<layer>.mlp.experts.gate_proj.weight` and `up_proj.weight` [E, F, W],
    `down_proj.weight` [E, W, F], and their `.bias` [E, F], [E, F] and [E, W]. All other tensors are
    unchanged.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._parts: dict[str, _Part] = {}
        tensors = dict(checkpoint.tensors)
        for info in checkpoint.tensors.values():
            biased = info.name.endswith(_BIAS)
            name = info.name.removesuffix(_BIAS)
            ending = next((ending for ending in _PARTS if name.endswith(ending)), None)
            if ending is None or len(info.shape) != (2 if biased else 3):
                continue  # left for check_shapes to refuse
            del tensors[info.name]
            for part, rows in _PARTS[ending].items():
                kind = "bias" if biased else "weight"
                own = f"{name.removesuffix(ending)}mlp.experts.{part}.{kind}"
                self._parts[own] = _Part(info, rows)
                tensors[own] = replace(info, name=own, shape=_shape(info, rows))
        self.tensors: Mapping[str, TensorInfo] = tensors

    @property
    def path(self) -> Path:
        """See Checkpoint."""
        return self._checkpoint.path

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint. Also returns expert biases, as matrices [E, N]."""
        part = self._parts.get(name)
        if part is None:
            return self._checkpoint.matrix(name)
        whole = self._checkpoint.matrix(part.stored.name)
        assert isinstance(whole, Dense), "biases are floats"
        return Dense(np.ascontiguousarray(whole.data[:, part.rows]), whole.dtype)

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint."""
        part = self._parts.get(name)
        if part is None:
            return self._checkpoint.stack(name)
        if part.stored.type_name == MXFP4:
            assert isinstance(self._checkpoint, Mxfp4Checkpoint)
            return self._checkpoint.stack(part.stored.name, part.rows)
        return tuple(
            _transposed(one, part.rows) for one in self._checkpoint.stack(part.stored.name)
        )

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint."""
        part = self._parts.get(name)
        return self._checkpoint.layout_sample(name if part is None else part.stored.name)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        return self._checkpoint.vector(name)

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        return self._checkpoint.flattened(name)


def _shape(info: TensorInfo, rows: slice) -> tuple[int, ...]:
    """Return the shape that the output rows `rows` of a stored expert tensor have in this
    checkpoint: [E, N] for a bias, [E, N, inputs] for a weight."""
    if len(info.shape) == 2:
        count, outputs = info.shape
        return count, len(range(outputs)[rows])
    count, outputs, inputs = info.shape
    if info.type_name != MXFP4:
        outputs, inputs = inputs, outputs
    return count, len(range(outputs)[rows]), inputs


def _transposed(matrix: Matrix, rows: slice) -> Dense:
    """Select the output columns `rows` of a matrix [inputs, outputs] and return them transposed,
    [N, inputs]."""
    assert isinstance(matrix, Dense), "experts are MXFP4 or floats"
    return Dense(np.ascontiguousarray(matrix.data[:, rows].T), matrix.dtype)
