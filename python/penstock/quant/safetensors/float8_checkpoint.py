"""A safetensors folder some of whose matrices are 8-bit floats with their scales beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Float8, Matrix
from penstock.quant.checkpoint import TensorInfo
from penstock.quant.float8 import E4M3, float8_to_bfloat16
from penstock.quant.safetensors.quantization_schemes import Float8Scheme
from penstock.quant.safetensors.safetensors_file import FLOAT8, SafetensorsFolder

Float8Storage = Literal["float8", "bf16"]
"""What 8-bit floats are held as: kernels on a GPU know them, a CPU's do not."""

WIDENED = "; weights of 8-bit floats are held as bfloat16"
"""Said beside what they take."""

# Factors of the codes both; the older name is that of what a quantizer would multiply by.
SCALE_NAMES = ("weight_scale_inv", "weight_scale")
INPUT_SCALE = "input_scale"
LARGEST_SCALE = np.finfo(np.float32).max / E4M3.max(where=np.isfinite(E4M3), initial=0)
PIECE_CODES = 1 << 20


class Float8Checkpoint:
    """`folder` read by `scheme`, as a Checkpoint: scales are no tensors of it, but parts of the
    matrices that they belong to. Matrices of other types are read as they are."""

    def __init__(
        self, folder: SafetensorsFolder, scheme: Float8Scheme, held: Float8Storage
    ) -> None:
        """Raises ModelError naming a matrix whose scales are missing or misshapen."""
        self.path = folder.path
        self._folder = folder
        self._held = held
        self._scales: dict[str, tuple[str, tuple[int, int]]] = {}
        tensors = dict(folder.tensors)
        for name, info in folder.tensors.items():
            if info.type_name == FLOAT8 and name.endswith(".weight"):
                scale = self._scale_of(name)
                self._scales[name] = scale.name, self._block(info, scale, scheme)
                del tensors[scale.name]
                tensors.pop(_beside(name, INPUT_SCALE), None)
        self.tensors: Mapping[str, TensorInfo] = tensors

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint. Raises ModelError also for a number that is not finite."""
        if name not in self._scales:
            return self._folder.matrix(name)
        scale_name, block = self._scales[name]
        codes = self._folder.codes(name)
        if _has_nan(codes):
            raise ModelError(f"{self.path}: {name}: not all numbers are finite")
        scale = self._folder.floats(scale_name)
        if not (np.abs(scale) <= LARGEST_SCALE).all():
            raise ModelError(f"{self.path}: {scale_name}: not all numbers are finite")
        grid = tuple(-(-size // step) for size, step in zip(codes.shape, block, strict=True))
        return self._as_held(Float8(codes, scale.reshape(grid), block))

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint. None is of 8-bit floats."""
        return self._folder.stack(name)

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint. A row where its scale is that of all its columns: whichever rows share
        it, each may be given its own. Else two groups of columns."""
        if name not in self._scales:
            return self._folder.layout_sample(name)
        _, (height, columns) = self._scales[name]
        _, width = self._folder.tensors[name].shape
        rows = 1 if columns == width else height
        shape = rows, min(2 * columns, width)
        scale = np.zeros((1, -(-shape[1] // columns)), np.float32)
        return self._as_held(Float8(np.zeros(shape, np.uint8), scale, (rows, columns)))

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        return self._folder.vector(name)

    @property
    def extra_bytes(self) -> int:
        """What the matrices take beyond the files: a second byte for each code that becomes
        bfloat16."""
        if self._held == "float8":
            return 0
        return sum(self._folder.tensors[name].size_bytes for name in self._scales)

    def _as_held(self, matrix: Float8) -> Matrix:
        return matrix if self._held == "float8" else float8_to_bfloat16(matrix)

    def _scale_of(self, name: str) -> TensorInfo:
        for candidate in SCALE_NAMES:
            found = self._folder.tensors.get(_beside(name, candidate))
            if found is not None:
                return found
        expected = " or ".join(_beside(name, candidate) for candidate in SCALE_NAMES)
        raise ModelError(f"{self.path}: tensor {expected} is missing")

    def _block(self, info: TensorInfo, scale: TensorInfo, scheme: Float8Scheme) -> tuple[int, int]:
        """The rows and columns of `info` that share a scale."""
        if len(info.shape) != 2:
            raise ModelError(f"{self.path}: {info.name}: expected a matrix, it is {info.shape}")
        rows, columns = info.shape
        expected: list[tuple[int, ...]]
        if scheme.block is not None:
            height, width = scheme.block
            expected = [(-(-rows // height), -(-columns // width))]
            block = scheme.block
        else:
            expected = [(rows, 1), (rows,), (1,), (), (1, 1)]
            block = (1 if scale.shape in expected[:2] else rows, columns)
        if scale.shape not in expected:
            raise ModelError(
                f"{self.path}: tensor {scale.name} has shape {scale.shape}, expected {expected[0]}"
            )
        return block


def _beside(name: str, last: str) -> str:
    """The tensor `last` of the module whose weight is `name`."""
    return name.removesuffix("weight") + last


def _has_nan(codes: npt.NDArray[np.uint8]) -> bool:
    flat = codes.reshape(-1)
    pieces = (flat[at : at + PIECE_CODES] for at in range(0, flat.size, PIECE_CODES))
    return any(bool(((piece & 0x7F) == 0x7F).any()) for piece in pieces)
