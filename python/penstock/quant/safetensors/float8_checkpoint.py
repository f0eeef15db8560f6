"""Reads safetensors folders in which some matrices are 8-bit floats with separate scale tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Float8, Matrix
from penstock.quant.checkpoint import Device, TensorInfo, extra_bytes, size_note
from penstock.quant.float8 import (
    E4M3,
    E5M2,
    float8_to_bfloat16,
    largest_scale,
    powers_of_two,
    regroup_float8,
)
from penstock.quant.safetensors.integer_checkpoint import IntegerCheckpoint
from penstock.quant.safetensors.quantization_schemes import Float8Scheme
from penstock.quant.safetensors.safetensors_file import FLOAT8, FLOAT8_E5M2, SafetensorsFolder

Float8Storage = Literal["float8", "bf16"]
"""The type in which 8-bit floats are stored in memory. Only GPU kernels support "float8"."""

# Both multiply the codes. The first is the inverse of the scale by which the quantizer multiplied.
SCALE_NAMES = ("weight_scale_inv", "weight_scale")
IGNORED = ("input_scale", "input_scale_ub")
EXPONENT_TYPES = ("U8", "F8_E8M0")
MX_GROUP = 32
KERNEL_GROUP = 128
"""The number of columns of a group that kernels of 8-bit floats support, apart from whole rows."""
VALUES = {FLOAT8: E4M3, FLOAT8_E5M2: E5M2}
"""The values of the codes by their type in the file."""
NOT_FINITE = {FLOAT8: 0x7F, FLOAT8_E5M2: 0x7C}
"""The first code that is no number."""
PIECE_CODES = 1 << 20


class Float8Checkpoint:
    """A Checkpoint that reads from `folder` and merges each matrix of 8-bit floats with its scales,
    and each stack of matrices. The scales are not separate tensors. Matrices of other types are
    unchanged. Codes of e5m2, which no kernel reads, become bfloat16."""

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
            if info.type_name in VALUES and name.endswith(".weight"):
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
        if len(self._folder.tensors[name].shape) != 2:
            raise ModelError(f"{self.path}: {name}: expected a matrix")
        codes, scale = self._codes_of(name), self._scales_of(name, scale_name)
        grid = tuple(-(-size // step) for size, step in zip(codes.shape, block, strict=True))
        return self._stored(name, Float8(codes, scale.reshape(grid), block))

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint. A matrix with one scale per column is only read to be transposed, and
        keeps its codes."""
        if name not in self._scales:
            return self._folder.stack(name)
        scale_name, block = self._scales[name]
        codes, scale = self._codes_of(name), self._scales_of(name, scale_name)
        if codes.ndim != 3:
            raise ModelError(f"{self.path}: {name}: expected matrices, the shape is {codes.shape}")
        grid = tuple(-(-size // step) for size, step in zip(codes.shape[1:], block, strict=True))
        return tuple(
            self._stored(name, Float8(one, own.reshape(grid), block))
            for one, own in zip(codes, scale, strict=True)
        )

    def _codes_of(self, name: str) -> npt.NDArray[np.uint8]:
        codes = self._folder.codes(name)
        if not _all_finite(codes, NOT_FINITE[self._folder.tensors[name].type_name]):
            raise ModelError(f"{self.path}: {name}: not all numbers are finite")
        return codes

    def _scales_of(self, name: str, scale_name: str) -> npt.NDArray[np.float32]:
        scale = self._scales_in(scale_name)
        values = VALUES[self._folder.tensors[name].type_name]
        if not (np.abs(scale) <= largest_scale(values)).all():
            raise ModelError(f"{self.path}: {scale_name}: not all numbers are finite")
        return scale

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint. If a scale covers all columns, the sample is one row, because rows that
        share a scale may be given one scale each. Otherwise the sample has two groups of
        columns."""
        if name not in self._scales:
            return self._folder.layout_sample(name)
        _, (height, columns) = self._scales[name]
        *_, all_rows, width = self._folder.tensors[name].shape
        if self._is_widened(name):
            return Dense(np.zeros((1, width), np.uint16), "bf16")
        if (height, columns) == (all_rows, 1):
            height, columns, width = 1, all_rows, all_rows
        elif columns != width:
            columns = KERNEL_GROUP
        rows = 1 if columns == width else height
        shape = rows, min(2 * columns, width)
        scale = np.zeros((1, -(-shape[1] // columns)), np.float32)
        return Float8(np.zeros(shape, np.uint8), scale, (rows, columns))

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
        return [name for name in self._scales if self._is_widened(name)]

    def _is_widened(self, name: str) -> bool:
        info, (_, block) = self._folder.tensors[name], self._scales[name]
        return (
            self._storage == "bf16"
            or info.type_name != FLOAT8
            or not (_is_read(block[1], info.shape[-1]) or _is_of_columns(info.shape, block))
        )

    def _stored(self, name: str, matrix: Float8) -> Matrix:
        if self._is_widened(name):
            values = VALUES[self._folder.tensors[name].type_name]
            return float8_to_bfloat16(matrix, values)
        if matrix.block == (matrix.shape[0], 1):
            return matrix
        return regroup_float8(matrix, KERNEL_GROUP)

    def _scales_in(self, name: str) -> npt.NDArray[np.float32]:
        """Read the scales of a matrix: floats, or powers of two as biased exponents. The exponent
        255 is NaN."""
        if self._folder.tensors[name].type_name not in EXPONENT_TYPES:
            return self._folder.floats(name)
        return powers_of_two(self._folder.integers(name))

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
        if len(info.shape) not in (2, 3) or 0 in info.shape:
            raise ModelError(
                f"{self.path}: {info.name}: expected a matrix, the shape is {info.shape}"
            )
        *experts, rows, columns = info.shape
        mx_groups = (rows, -(-columns // MX_GROUP))
        forms: list[tuple[tuple[int, ...], tuple[int, int]]]
        if scheme.block is not None:
            height, width = scheme.block
            down, across = -(-rows // height), -(-columns // width)
            block = height, min(width, columns)
            forms = [((down, across), block), ((down, 1, across, 1), block)]
        elif scale.type_name in EXPONENT_TYPES and scale.shape == (*experts, *mx_groups):
            forms = [(mx_groups, (1, MX_GROUP))]
        else:
            forms = [((rows, 1), (1, columns)), ((rows,), (1, columns))]
        if scheme.block is None or experts:
            forms += [(shape, (rows, columns)) for shape in ((1,), (), (1, 1))]
        if experts:  # of a transposed matrix
            forms += [((1, columns), (rows, 1)), ((columns, 1), (rows, 1))]
        blocks = {(*experts, *shape): block for shape, block in reversed(forms)}
        if scale.shape not in blocks:
            raise ModelError(
                f"{self.path}: tensor {scale.name} has shape {scale.shape}, expected "
                f"{(*experts, *forms[0][0])}"
            )
        return blocks[scale.shape]


def _sibling(name: str, last: str) -> str:
    """Return the name of the tensor `last` in the module whose weight is `name`."""
    return name.removesuffix("weight") + last


def _is_read(group: int, columns: int) -> bool:
    """Return whether kernels read groups of this many columns, perhaps in smaller parts."""
    return group == columns or group % KERNEL_GROUP == 0


def _is_of_columns(shape: tuple[int, ...], block: tuple[int, int]) -> bool:
    """Return whether a stack has one scale per column of each matrix."""
    return len(shape) == 3 and block == (shape[1], 1)


def _all_finite(codes: npt.NDArray[np.uint8], first: int) -> bool:
    """Return whether no code without its sign is `first` or a larger one."""
    flat = codes.reshape(-1)
    pieces = (flat[at : at + PIECE_CODES] for at in range(0, flat.size, PIECE_CODES))
    return not any(bool(((piece & 0x7F) >= first).any()) for piece in pieces)
