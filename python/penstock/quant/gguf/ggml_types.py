"""The tensor types of GGML: one row per type, with its number in a file, the size of its blocks,
and its conversion into a layout of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.regroup import has_half_steps
from penstock.kernels.weights import Affine, Dense, Matrix
from penstock.quant.checkpoint import Device
from penstock.quant.gguf import (
    ggml_blocks,
    ggml_codebook_blocks,
    ggml_floats,
    ggml_table_blocks,
    ggml_ternary_blocks,
)
from penstock.quant.gguf.block_arrays import Bytes
from penstock.quant.mxfp4 import mxfp4_layout_sample

Converter = Callable[[Bytes, tuple[int, int]], Matrix]


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A tensor type, whose blocks of `block` values have `size_bytes` bytes each.

    - `converter`: converts blocks exactly to a matrix.
    - `cpu_bits`: the bits in which packed weights on a CPU hold one quant. Packing finds quants of
      6 bits and of at most 16 values among those of 8 bits.
    - `tiny`: a block of tiny numbers, if the layout depends on the data. It is largest for scales
      below the normal float16.
    """

    name: str
    block: int
    size_bytes: int
    converter: Converter
    cpu_bits: int
    tiny: bytes | None = None

    @property
    def file_bits(self) -> float:
        """The bits of a weight in the file."""
        return 8 * self.size_bytes / self.block

    def convert(self, raw: Bytes, shape: tuple[int, int]) -> Matrix:
        """Convert the blocks `raw`, a flat array of bytes, to a matrix of `shape` [N, C].

        Float types become views of `raw`. The caller must have checked the size, and that C is a
        multiple of the block size. Raises ValueError for a scale that is infinite or NaN, and for
        numbers that no layout can represent.
        """
        matrix = self.converter(raw, shape)
        if isinstance(matrix, Affine):
            _check_scales(matrix)
        return matrix

    def layout_sample(self) -> Matrix:
        """Return one block of zeros in the layout of `convert`. If the layout depends on the data,
        return one of tiny numbers in the largest form."""
        if self.name == "MXFP4":
            return mxfp4_layout_sample()
        raw = np.frombuffer(bytearray(self.tiny or bytes(self.size_bytes)), np.uint8)
        return self.converter(raw, (1, self.block))

    def held_bits(self, device: Device) -> float:
        """Return the bits of a weight in memory, at most."""
        sample = self.layout_sample()
        if isinstance(sample, Dense):
            return 8 * sample.data.itemsize
        assert isinstance(sample, Affine)
        if device == "cpu":
            return self.cpu_bits + 8 * _scale_bytes(sample) / sample.shape[1]
        # A GPU holds two levels of scales multiplied, in float32.
        wide = sample.super_scale is not None or sample.scale.dtype == np.float32
        halved = has_half_steps(sample)
        arrays = 1 if sample.minimum is None and not halved else 2
        return (4 if halved else sample.bits) + arrays * (32 if wide else 16) / sample.group


def _scale_bytes(matrix: Affine) -> int:
    arrays = (matrix.scale, matrix.minimum, matrix.super_scale, matrix.super_minimum)
    return sum(int(array.nbytes) for array in arrays if array is not None)


def _check_scales(matrix: Affine) -> None:
    factors: tuple[npt.NDArray[Any] | None, ...] = (matrix.super_scale, matrix.super_minimum)
    if matrix.super_scale is None:
        factors = matrix.scale, matrix.minimum
    if not all(np.isfinite(factor).all() for factor in factors if factor is not None):
        raise ValueError("a scale is infinite or NaN")


def _ones(count: int) -> bytes:
    return b"\1" * count


_TINY_IQ1_M: Final = bytes(49) + b"\x10" + bytes(6)  # d is in the highest bits of its scales

SUPPORTED: Final = {
    0: GgmlType("F32", 1, 4, ggml_floats.f32, 32),
    1: GgmlType("F16", 1, 2, ggml_floats.f16, 16),
    2: GgmlType("Q4_0", 32, 18, ggml_blocks.q4_0, 4),
    3: GgmlType("Q4_1", 32, 20, ggml_blocks.q4_1, 4),
    6: GgmlType("Q5_0", 32, 22, ggml_blocks.q5_0, 6),
    7: GgmlType("Q5_1", 32, 24, ggml_blocks.q5_1, 6),
    8: GgmlType("Q8_0", 32, 34, ggml_blocks.q8_0, 8),
    10: GgmlType("Q2_K", 256, 84, ggml_blocks.q2_k, 4),
    11: GgmlType("Q3_K", 256, 110, ggml_blocks.q3_k, 4),
    12: GgmlType("Q4_K", 256, 144, ggml_blocks.q4_k, 4),
    13: GgmlType("Q5_K", 256, 176, ggml_blocks.q5_k, 6),
    14: GgmlType("Q6_K", 256, 210, ggml_blocks.q6_k, 6),
    15: GgmlType("Q8_K", 256, 292, ggml_blocks.q8_k, 8),
    16: GgmlType("IQ2_XXS", 256, 66, ggml_codebook_blocks.iq2_xxs, 4, _ones(66)),
    17: GgmlType("IQ2_XS", 256, 74, ggml_codebook_blocks.iq2_xs, 4, _ones(74)),
    18: GgmlType("IQ3_XXS", 256, 98, ggml_codebook_blocks.iq3_xxs, 4, _ones(98)),
    19: GgmlType("IQ1_S", 256, 50, ggml_codebook_blocks.iq1_s, 4, _ones(50)),
    20: GgmlType("IQ4_NL", 32, 18, ggml_table_blocks.iq4_nl, 4),
    21: GgmlType("IQ3_S", 256, 110, ggml_codebook_blocks.iq3_s, 4),
    22: GgmlType("IQ2_S", 256, 82, ggml_codebook_blocks.iq2_s, 4, _ones(82)),
    23: GgmlType("IQ4_XS", 256, 136, ggml_table_blocks.iq4_xs, 4),
    24: GgmlType("I8", 1, 1, ggml_floats.i8, 32),
    25: GgmlType("I16", 1, 2, ggml_floats.i16, 32),
    26: GgmlType("I32", 1, 4, ggml_floats.i32, 32),
    27: GgmlType("I64", 1, 8, ggml_floats.i64, 32),
    28: GgmlType("F64", 1, 8, ggml_floats.f64, 32),
    29: GgmlType("IQ1_M", 256, 56, ggml_codebook_blocks.iq1_m, 4, _TINY_IQ1_M),
    30: GgmlType("BF16", 1, 2, ggml_floats.bf16, 16),
    34: GgmlType("TQ1_0", 256, 54, ggml_ternary_blocks.tq1_0, 4),
    35: GgmlType("TQ2_0", 256, 66, ggml_ternary_blocks.tq2_0, 4),
    39: GgmlType("MXFP4", 32, 17, ggml_table_blocks.mxfp4, 4),
    40: GgmlType("NVFP4", 64, 36, ggml_table_blocks.nvfp4, 4),
    41: GgmlType("Q1_0", 128, 18, ggml_ternary_blocks.q1_0, 4),
}

# The types that are refused, with their names for the error message. Q8_1 holds activations, and
# the others were removed from GGML: they are Q4_0 and IQ4_NL in the order of one processor.
UNSUPPORTED: Final = {
    9: "Q8_1",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

TYPES: Final = {kind.name: kind for kind in SUPPORTED.values()}
"""The supported types by name."""


def type_name(number: int) -> str:
    """Return GGML's name of a type, or "type <n>" for an unknown number."""
    known = SUPPORTED.get(number)
    return known.name if known else UNSUPPORTED.get(number, f"type {number}")
