"""Reads safetensors folders of gpt-oss, Llama 4 and of Qwen3-VL with experts, and splits their
expert tensors into gate, up and down tensors as in other models.

In these folders, gate and up are one tensor, whose rows alternate in gpt-oss: gate 0, up 0, gate 1,
... Weights may be stored transposed, [E, inputs, outputs], which the shapes tell; MXFP4 weights are
not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Affine, Dense, Float8, Matrix
from penstock.quant.checkpoint import Checkpoint, TensorInfo
from penstock.quant.float8 import float8_to_bfloat16, transposed_float8
from penstock.quant.safetensors.mxfp4_checkpoint import ALL_ROWS, MXFP4, Mxfp4Checkpoint
from penstock.quant.weight_slices import row_range, take_rows

FUSED_EXPERTS: Final = "mlp.experts."
FUSED_GATE_UP: Final = FUSED_EXPERTS + "gate_up_proj"
"""The suffix of the names of fused gate and up tensors."""

_DOWN: Final = "mlp.experts.down_proj"
_ENDINGS: Final = (FUSED_GATE_UP, _DOWN)
GateUpOrder: TypeAlias = Literal["alternating", "halves"]
"""The order of the rows of gate and up in their tensor."""
_BIAS: Final = "_bias"
_WEIGHT: Final = ".weight"
"""The end of the name of a quantized stack; see `stacked_experts`."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A gate, up or down projection: the output rows `rows` of the tensor `stored`, or its columns
    if it is transposed."""

    stored: TensorInfo
    rows: slice
    transposed: bool = False


class GptOssCheckpoint:
    """A checkpoint whose expert tensors are those of `checkpoint`, split into gate, up and down.

    The names and shapes are `<layer>.mlp.experts.gate_proj.weight` and `up_proj.weight` [E, F, W],
    `down_proj.weight` [E, W, F], and their `.bias` [E, F], [E, F] and [E, W]. All other tensors are
    unchanged.
    """

    def __init__(self, checkpoint: Checkpoint, width: int, order: GateUpOrder) -> None:
        """Find the expert tensors. `width`: W, the width of the model, which tells whether they are
        transposed."""
        self._checkpoint = checkpoint
        self._parts: dict[str, _Part] = {}
        tensors = dict(checkpoint.tensors)
        for info in checkpoint.tensors.values():
            biased = info.name.endswith(_BIAS)
            name = info.name.removesuffix(_BIAS).removesuffix(_WEIGHT)
            ending = next((ending for ending in _ENDINGS if name.endswith(ending)), None)
            if ending is None or len(info.shape) != (2 if biased else 3):
                continue  # left for check_shapes to refuse
            del tensors[info.name]
            layer = name.removesuffix(ending)
            turned = not biased and _is_transposed(checkpoint.tensors, layer, ending, width)
            outputs = info.shape[2 if turned else 1]
            for part, rows in _rows_of_parts(ending, outputs, order).items():
                own = f"{layer}mlp.experts.{part}.{'bias' if biased else 'weight'}"
                self._parts[own] = _Part(info, rows, turned)
                shape = info.shape[0], len(range(outputs)[rows])
                inputs = () if biased else (info.shape[1 if turned else 2],)
                tensors[own] = replace(info, name=own, shape=(*shape, *inputs))
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
        if part.transposed:
            where = f"{self.path}: {part.stored.name}"
            return tuple(_transposed(one, part.rows, where) for one in stored)
        return tuple(_selected(one, part.rows) for one in stored)

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


def _rows_of_parts(ending: str, outputs: int, order: GateUpOrder) -> dict[str, slice]:
    """Return the output rows of each projection in a stored tensor."""
    if ending == _DOWN:
        return {"down_proj": ALL_ROWS}
    if order == "alternating":
        return {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
    return {"gate_proj": slice(0, outputs // 2), "up_proj": slice(outputs // 2, None)}


def _is_transposed(tensors: Mapping[str, TensorInfo], layer: str, ending: str, width: int) -> bool:
    """Return whether a stack [E, ., .] of a layer is transposed. A stack of gate and up then has
    the inputs, which are as many as the model is wide, before the outputs. If both numbers are
    equal, the other stack of the layer tells."""
    for own in (ending, *(other for other in _ENDINGS if other != ending)):
        info = tensors.get(layer + own) or tensors.get(layer + own + _WEIGHT)
        if info is None or len(info.shape) != 3:
            continue
        if info.type_name == MXFP4:
            return False
        if info.shape[1] != info.shape[2]:
            return (info.shape[1] == width) == (own == FUSED_GATE_UP)
    return True


def _selected(matrix: Matrix, rows: slice) -> Matrix:
    """Return rows of a matrix, as views if possible. A scale per column is read by no kernel."""
    if isinstance(matrix, Float8) and matrix.block[1] == 1 < matrix.shape[1]:
        matrix = float8_to_bfloat16(matrix)
    first, stop, step = rows.indices(matrix.shape[0])
    if step != 1:
        return take_rows(matrix, np.arange(first, stop, step))
    return row_range(matrix, slice(first, stop))


def _transposed(matrix: Matrix, rows: slice, where: str) -> Matrix:
    """Select the output columns `rows` of a matrix [inputs, outputs] and return them transposed,
    [N, inputs]."""
    if isinstance(matrix, Affine):
        raise ModelError(f"{where}: transposed integers are not supported")
    if isinstance(matrix, Dense):
        return Dense(np.ascontiguousarray(matrix.data[:, rows].T), matrix.dtype)
    selected = _selected(transposed_float8(matrix), rows)
    assert isinstance(selected, Float8)
    return replace(
        selected,
        codes=np.ascontiguousarray(selected.codes),
        scale=np.ascontiguousarray(selected.scale),
    )
