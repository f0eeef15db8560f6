"""Reads safetensors folders in which some matrices are 8-bit floats with separate scale tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Float8, Matrix
from penstock.quant.checkpoint import Device, TensorInfo, extra_bytes, size_note
from penstock.quant.float8 import E4M3, float8_to_bfloat16, regroup_float8
from penstock.quant.safetensors.integer_checkpoint import IntegerCheckpoint
from penstock.quant.safetensors.quantization_schemes import Float8Scheme
from penstock.quant.safetensors.safetensors_file import FLOAT8, SafetensorsFolder

Float8Storage = Literal["float8", "bf16"]
"""The type in which 8-bit floats are stored in memory. Only GPU kernels support "float8"."""

# Both multiply the codes. The first is the inverse of the scale by which the quantizer multiplied.
SCALE_NAMES = ("weight_scale_inv", "weight_scale")
IGNORED = ("input_scale", "input_scale_ub")
EXPONENT_TYPES = ("U8", "F8_E8M0")
MX_GROUP = 32
KERNEL_GROUP = 128
"""The number of columns of a group that kernels of 8-bit floats support, apart from whole rows."""
LARGEST_SCALE = np.finfo(np.float32).max / E4M3.max(where=np.isfinite(E4M3), initial=0)
PIECE_CODES = 1 << 20


class Float8Checkpoint:
    """A Checkpoint that reads from `folder` and merges each matrix of 8-bit floats with its scales.
    The scales are not separate tensors. Matrices of other types are unchanged."""

    def __init__(
        self,
        folder: SafetensorsFolder | IntegerCheckpoint,
        scheme: Float8Scheme,
        storage: Float8Storage,
    ) -> None:
        """Find the scales of each matrix. Raises ModelError naming a matrix whose scales are
        missing or have the wrong shape."""
        self.path = folder.path
        self._folder = folder
        self._storage = storage
        self._scales: dict[str, tuple[str, tuple[int, int]]] = {}
        tensors = dict(folder.tensors)
        for name, info in folder.tensors.items():
            if info.type_name == FLOAT8 and name.endswith(".weight"):
                scale = self._scale_of(name)
                self._scales[name] = scale.name, self._block(info, scale, scheme)
                del tensors[scale.name]
                for ignored in IGNORED:
                    tensors.pop(_sibling(name, ignored), None)
        self.tensors: Mapping[str, TensorInfo] = tensors

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint. Also raises ModelError for a number that is not finite."""
        if name not in self._scales:
            return self._folder.matrix(name)
        scale_name, block = self._scales[name]
        codes = self._folder.codes(name)
        if _has_nan(codes):
            raise ModelError(f"{self.path}: {name}: not all numbers are finite")
        scale = self._scales_in(scale_name)
        if not (np.abs(scale) <= LARGEST_SCALE).all():
            raise ModelError(f"{self.path}: {scale_name}: not all numbers are finite")
        grid = tuple(-(-size // step) for size, step in zip(codes.shape, block, strict=True))
        return self._stored(Float8(codes, scale.reshape(grid), block))

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint. Three-dimensional tensors are never 8-bit floats."""
        return self._folder.stack(name)

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint. If a scale covers all columns, the sample is one row, because rows that
        share a scale may be given one scale each. Otherwise the sample has two groups of
        columns."""
        if name not in self._scales:
            return self._folder.layout_sample(name)
        _, (height, columns) = self._scales[name]
        _, width = self._folder.tensors[name].shape
        if _is_read(columns, width) and columns != width:
            columns = KERNEL_GROUP
        rows = 1 if columns == width else height
        shape = rows, min(2 * columns, width)
        scale = np.zeros((1, -(-shape[1] // columns)), np.float32)
        return self._stored(Float8(np.zeros(shape, np.uint8), scale, (rows, columns)))

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        return self._folder.vector(name)

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        return self._folder.flattened(name)

    @property
    def extra_bytes(self) -> int:
        """The bytes that the matrices need beyond the size of their files: one byte for each code
        that becomes bfloat16."""
        widened = sum(self._folder.tensors[name].size_bytes for name in self._widened())
        return widened + extra_bytes(self._folder)

    def size_note(self, device: Device) -> str:
        """See SizedCheckpoint."""
        note = "; weights of 8-bit floats are held as bfloat16" if self._widened() else ""
        return note + size_note(self._folder, device)

    def _widened(self) -> list[str]:
        """Return the names of the matrices that become bfloat16: all of them, or those with groups
        of columns that no kernel supports."""
        if self._storage == "bf16":
            return list(self._scales)
        tensors = self._folder.tensors
        return [
            name
            for name, (_, (_, columns)) in self._scales.items()
            if not _is_read(columns, tensors[name].shape[1])
        ]

    def _stored(self, matrix: Float8) -> Matrix:
        if self._storage == "bf16" or not _is_read(matrix.block[1], matrix.shape[1]):
            return float8_to_bfloat16(matrix)
        return regroup_float8(matrix, KERNEL_GROUP)

    def _scales_in(self, name: str) -> npt.NDArray[np.float32]:
        """Read the scales of a matrix: floats, or powers of two as biased exponents. The exponent
        255 is NaN."""
        if self._folder.tensors[name].type_name not in EXPONENT_TYPES:
            return self._folder.floats(name)
        exponents = self._folder.integers(name).astype(np.int32)
        powers = np.ldexp(np.float32(1), np.minimum(exponents, 254) - 127)
        scale: npt.NDArray[np.float32] = np.where(exponents == 255, np.float32(np.nan), powers)
        return scale

    def _scale_of(self, name: str) -> TensorInfo:
        for candidate in SCALE_NAMES:
            found = self._folder.tensors.get(_sibling(name, candidate))
            if found is not None:
                return found
        expected = " or ".join(_sibling(name, candidate) for candidate in SCALE_NAMES)
        raise ModelError(f"{self.path}: tensor {expected} is missing")

    def _block(self, info: TensorInfo, scale: TensorInfo, scheme: Float8Scheme) -> tuple[int, int]:
        """Return the number of rows and of columns of `info` that share a scale. Raises ModelError
        if the scales have the wrong shape."""
        if len(info.shape) != 2:
            raise ModelError(
                f"{self.path}: {info.name}: expected a matrix, the shape is {info.shape}"
            )
        rows, columns = info.shape
        expected: list[tuple[int, ...]]
        mx_groups = (rows, -(-columns // MX_GROUP))
        if scheme.block is not None:
            height, width = scheme.block
            down, across = -(-rows // height), -(-columns // width)
            expected = [(down, across), (down, 1, across, 1)]
            block = height, min(width, columns)
        elif scale.type_name in EXPONENT_TYPES and scale.shape == mx_groups:
            expected, block = [mx_groups], (1, MX_GROUP)
        else:
            expected = [(rows, 1), (rows,), (1,), (), (1, 1)]
            block = (1 if scale.shape in expected[:2] else rows, columns)
        if scale.shape not in expected:
            raise ModelError(
                f"{self.path}: tensor {scale.name} has shape {scale.shape}, expected {expected[0]}"
            )
        return block


def _sibling(name: str, last: str) -> str:
    """Return the name of the tensor `last` in the module whose weight is `name`."""
    return name.removesuffix("weight") + last


def _is_read(group: int, columns: int) -> bool:
    """Return whether kernels read groups of this many columns, perhaps in smaller parts."""
    return group == columns or group % KERNEL_GROUP == 0


def _has_nan(codes: npt.NDArray[np.uint8]) -> bool:
    flat = codes.reshape(-1)
    pieces = (flat[at : at + PIECE_CODES] for at in range(0, flat.size, PIECE_CODES))
    return any(bool(((piece & 0x7F) == 0x7F).any()) for piece in pieces)
