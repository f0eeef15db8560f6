"""Reads safetensors folders in which some stacks of matrices are MXFP4, as published for
gpt-oss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Matrix
from penstock.quant.affine import unify_affine
from penstock.quant.checkpoint import Device, TensorInfo
from penstock.quant.mxfp4 import GROUP, look_up_pairs, mxfp4_layout_sample, mxfp4_matrix
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder

MXFP4: Final = "MXFP4"
"""The `TensorInfo.type_name` of MXFP4 tensors."""

ALL_ROWS: Final = slice(None)
_BLOCKS, _SCALES = "_blocks", "_scales"


class Mxfp4Checkpoint:
    """A Checkpoint that reads from `folder` and merges the two tensors of each MXFP4 stack,
    `<name>_blocks` [E, N, C / 32, 16] with two codes per byte and `<name>_scales` [E, N, C / 32],
    into one tensor `<name>` [E, N, C]. Other tensors are unchanged."""

    def __init__(self, folder: SafetensorsFolder) -> None:
        """Find the scales of each tensor of blocks. Raises ModelError naming a tensor whose scales
        are missing or have the wrong shape."""
        self.path = folder.path
        self._folder = folder
        self._stored: dict[str, tuple[TensorInfo, TensorInfo]] = {}
        tensors = dict(folder.tensors)
        for blocks in folder.tensors.values():
            if not blocks.name.endswith(_BLOCKS):
                continue
            name = blocks.name.removesuffix(_BLOCKS)
            scales = self._scales_of(name, blocks)
            shape = (*scales.shape[:-1], scales.shape[-1] * GROUP)
            num_bytes = blocks.size_bytes + scales.size_bytes
            self._stored[name] = blocks, scales
            del tensors[blocks.name], tensors[scales.name]
            tensors[name] = TensorInfo(name, shape, MXFP4, blocks.offset, num_bytes)
        self.tensors: Mapping[str, TensorInfo] = tensors

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint. Single matrices are never MXFP4."""
        return self._folder.matrix(name)

    def stack(self, name: str, rows: slice = ALL_ROWS) -> tuple[Matrix, ...]:
        """See Checkpoint. `rows`: the rows to read of each matrix in an MXFP4 stack. Also raises
        ModelError for a scale that is not supported."""
        if name not in self._stored:
            assert rows == ALL_ROWS
            return self._folder.stack(name)
        blocks, scales = (self._folder.integers(part.name) for part in self._stored[name])
        where = f"{self.path}: {name}"
        pairs = zip(blocks.view(np.uint8), scales.view(np.uint8), strict=True)
        try:
            each = tuple(_matrix(codes[rows], exponents[rows]) for codes, exponents in pairs)
        except ValueError as error:
            raise ModelError(f"{where}{_SCALES}: {error}") from None
        return unify_affine(each, where)

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint."""
        return mxfp4_layout_sample() if name in self._stored else self._folder.layout_sample(name)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        return self._folder.vector(name)

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        return self._folder.flattened(name)

    @property
    def extra_bytes(self) -> int:
        """The bytes that the matrices may need on a CPU beyond the size of their files. A CPU
        stores four bits per value and a float32 scale per group."""
        group_bytes = GROUP // 2 + int(mxfp4_layout_sample().scale.nbytes)
        groups = sum(math.prod(scales.shape) for _, scales in self._stored.values())
        return group_bytes * groups - sum(self.tensors[name].size_bytes for name in self._stored)

    def size_note(self, device: Device) -> str:
        """See SizedCheckpoint."""
        if device == "cpu" or not self._stored:
            return ""
        return "; no kernel reads MXFP4 at its size: it takes 9 bits per weight instead of 4.25"

    def _scales_of(self, name: str, blocks: TensorInfo) -> TensorInfo:
        scales = self._folder.tensors.get(name + _SCALES)
        if scales is None:
            raise ModelError(f"{self.path}: tensor {name}{_SCALES} is missing")
        for info in (blocks, scales):
            if info.type_name != "U8":
                raise ModelError(
                    f"{self.path}: tensor {info.name} has type {info.type_name}, expected U8"
                )
        if len(blocks.shape) != 4 or blocks.shape[-1] != GROUP // 2 or 0 in blocks.shape:
            raise ModelError(
                f"{self.path}: tensor {blocks.name} has shape {blocks.shape}, expected four "
                f"dimensions, the last of {GROUP // 2} bytes"
            )
        if scales.shape != blocks.shape[:-1]:
            raise ModelError(
                f"{self.path}: tensor {scales.name} has shape {scales.shape}, expected "
                f"{blocks.shape[:-1]}"
            )
        return scales


def _matrix(codes: npt.NDArray[np.uint8], exponents: npt.NDArray[np.uint8]) -> Matrix:
    """Return the matrix [N, C] of packed codes [N, C / 32, 16] and exponents [N, C / 32]."""
    q = look_up_pairs(np.ascontiguousarray(codes)).reshape(len(codes), -1)
    return mxfp4_matrix(q, np.ascontiguousarray(exponents))
