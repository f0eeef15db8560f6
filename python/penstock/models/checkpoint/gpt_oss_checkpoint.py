"""Reads safetensors folders of gpt-oss and of Qwen3-VL with experts, and splits their expert
tensors into gate, up and down tensors as in other models.

In these folders, gate and up are one tensor, whose rows alternate in gpt-oss: gate 0, up 0, gate 1,
... Float weights are stored transposed, [E, inputs, outputs]; MXFP4 weights and the experts of
Qwen3-VL as newer versions of transformers save them are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, Matrix
from penstock.quant.checkpoint import Checkpoint, TensorInfo
from penstock.quant.safetensors.mxfp4_checkpoint import ALL_ROWS, MXFP4, Mxfp4Checkpoint

FUSED_EXPERTS: Final = "mlp.experts."
FUSED_GATE_UP: Final = FUSED_EXPERTS + "gate_up_proj"
"""The suffix of the names of fused gate and up tensors."""

_DOWN: Final = "mlp.experts.down_proj"
_ENDINGS: Final = (FUSED_GATE_UP, _DOWN)
ExpertLayout: TypeAlias = Literal["alternating", "halves", "plain halves"]
"""The order of gate and up in their tensor. "plain": the experts are not transposed."""
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

    def __init__(self, checkpoint: Checkpoint, layout: ExpertLayout = "alternating") -> None:
        self._layout = layout
        self._checkpoint = checkpoint
        self._parts: dict[str, _Part] = {}
        tensors = dict(checkpoint.tensors)
        for info in checkpoint.tensors.values():
            biased = info.name.endswith(_BIAS)
            name = info.name.removesuffix(_BIAS)
            ending = next((ending for ending in _ENDINGS if name.endswith(ending)), None)
            if ending is None or len(info.shape) != (2 if biased else 3):
                continue  # left for check_shapes to refuse
            del tensors[info.name]
            for part, rows in _parts(ending, info, layout).items():
                kind = "bias" if biased else "weight"
                own = f"{name.removesuffix(ending)}mlp.experts.{part}.{kind}"
                self._parts[own] = _Part(info, rows)
                tensors[own] = replace(info, name=own, shape=self._shape(info, rows))
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
        stored = self._checkpoint.stack(part.stored.name)
        if self._layout == "plain halves":
            return tuple(_selected(one, part.rows) for one in stored)
        return tuple(_transposed(one, part.rows) for one in stored)

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

    def _shape(self, info: TensorInfo, rows: slice) -> tuple[int, ...]:
        """Return the shape that the output rows `rows` of a stored expert tensor have in this
        checkpoint: [E, N] for a bias, [E, N, inputs] for a weight."""
        if len(info.shape) == 2:
            count, outputs = info.shape
            return count, len(range(outputs)[rows])
        count, outputs, inputs = info.shape
        if info.type_name != MXFP4 and self._layout != "plain halves":
            outputs, inputs = inputs, outputs
        return count, len(range(outputs)[rows]), inputs


def _parts(ending: str, info: TensorInfo, layout: ExpertLayout) -> dict[str, slice]:
    """Return the output rows of each projection in a stored tensor."""
    if ending == _DOWN:
        return {"down_proj": ALL_ROWS}
    if layout == "alternating":
        return {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
    half = info.shape[1 if layout == "plain halves" else -1] // 2
    return {"gate_proj": slice(0, half), "up_proj": slice(half, None)}


def _selected(matrix: Matrix, rows: slice) -> Dense:
    """Return the rows of a matrix."""
    assert isinstance(matrix, Dense), "experts are MXFP4 or floats"
    return Dense(matrix.data[rows], matrix.dtype)


def _transposed(matrix: Matrix, rows: slice) -> Dense:
    """Select the output columns `rows` of a matrix [inputs, outputs] and return them transposed,
    [N, inputs]."""
    assert isinstance(matrix, Dense), "experts are MXFP4 or floats"
    return Dense(np.ascontiguousarray(matrix.data[:, rows].T), matrix.dtype)


def expert_layout(checkpoint: Checkpoint, width: int) -> ExpertLayout:
    """Return the layout of a multimodal model's experts. `width`: W, the width of the model, from
    which the shapes tell whether they are transposed."""
    for name, info in checkpoint.tensors.items():
        if name.endswith(_DOWN) and len(info.shape) == 3 and info.shape[1] != info.shape[2]:
            return "plain halves" if info.shape[1] == width else "halves"
        if name.endswith(FUSED_GATE_UP) and len(info.shape) == 3 and info.shape[1] != info.shape[2]:
            return "halves" if info.shape[1] == width else "plain halves"
    return "halves"
