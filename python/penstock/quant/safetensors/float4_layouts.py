"""The layouts of 4-bit and 6-bit floats in groups: NVFP4, MXFP4 and MXFP6.

The values become integers, with scales that are halved (e2m1) or divided by 8 (e2m3).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import FLOAT4_ZERO, Affine
from penstock.quant.affine import narrow_to_float16
from penstock.quant.float8 import E4M3
from penstock.quant.mxfp4 import LARGEST_EXPONENT, look_up_pairs, mxfp4_matrix
from penstock.quant.safetensors.layout import (
    FLOATS,
    SCALAR_SHAPES,
    Arrays,
    Header,
    Layout,
    Part,
    Shape,
    Size,
)
from penstock.quant.safetensors.quantization_schemes import Grouping, LayoutName

FLOAT6_ZERO: Final = 60
"""The integer that represents 0 in an `Affine` of e2m3, whose largest value is 7.5, or 60 / 8."""
EXPONENT_TYPES = ("U8", "F8_E8M0")

_NVFP4 = Grouping(8, 16)
_MX = Grouping(8, 32)


def _float6_values() -> npt.NDArray[np.uint8]:
    """Return 8 times the value of each e2m3 code, plus FLOAT6_ZERO. A code has a sign, two bits of
    exponent with bias 1, and three bits of mantissa."""
    codes = np.arange(64)
    exponent, mantissa = codes >> 3 & 3, codes & 7
    magnitude = np.where(exponent > 0, (8 + mantissa) << np.maximum(exponent - 1, 0), mantissa)
    return (FLOAT6_ZERO + np.where(codes < 32, magnitude, -magnitude)).astype(np.uint8)


_FLOAT6_VALUES = _float6_values()


def _two_per_byte(grouping: Grouping) -> Any:
    def size(shape: Shape, _: Grouping, header: Header) -> Size:
        return Size(shape[0], shape[1] * 2, grouping)

    return size


def _eight_per_word(grouping: Grouping) -> Any:
    def size(shape: Shape, _: Grouping, header: Header) -> Size:
        return Size(shape[0], shape[1] * 8, grouping)

    return size


def _has_groups_of(columns: int) -> Any:
    def accepts(header: Header) -> bool:
        words, scales = (header.shapes[last][-1:] for last in ("weight", "scales"))
        return bool(words and scales) and words[0] * 8 == scales[0] * columns

    return accepts


def _four_in_three_bytes(shape: Shape, _: Grouping, header: Header) -> Size:
    return Size(shape[0], shape[1] * 4 // 3, _MX)


def _nvfp4_ct(arrays: Arrays, size: Size) -> Affine:
    """Convert NVFP4 of compressed-tensors, whose global scale divides the scales."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        scale = E4M3[arrays["weight_scale"]] / np.float32(arrays["weight_global_scale"].item())
    return _nvfp4(look_up_pairs(arrays["weight_packed"]), scale)


def _nvfp4_modelopt(arrays: Arrays, size: Size) -> Affine:
    """Convert NVFP4 of modelopt, whose second scale multiplies the scales."""
    with np.errstate(over="ignore"):
        scale = E4M3[arrays["weight_scale"]] * np.float32(arrays["weight_scale_2"].item())
    return _nvfp4(look_up_pairs(arrays["weight"]), scale)


def _nvfp4_mlx(arrays: Arrays, size: Size) -> Affine:
    """Convert NVFP4 of MLX, which has no second scale."""
    return _nvfp4(_of_words(arrays), E4M3[arrays["scales"]])


def _mxfp4_mlx(arrays: Arrays, size: Size) -> Affine:
    return mxfp4_matrix(_of_words(arrays), np.ascontiguousarray(arrays["scales"]))


def _of_words(arrays: Arrays) -> npt.NDArray[np.uint8]:
    return look_up_pairs(np.ascontiguousarray(arrays["weight"]).view(np.uint8))


def _nvfp4(q: npt.NDArray[np.uint8], scale: npt.NDArray[np.float32]) -> Affine:
    if not (np.abs(scale) <= np.finfo(np.float32).max / 512).all():
        raise ValueError("not all scales are finite")
    (held,) = narrow_to_float16(scale * np.float32(0.5))
    return Affine(8, 16, q, held, zero_point=FLOAT4_ZERO)


def _mxfp4_ct(arrays: Arrays, size: Size) -> Affine:
    return mxfp4_matrix(look_up_pairs(arrays["weight_packed"]), _exponents(arrays))


def _mxfp4_modelopt(arrays: Arrays, size: Size) -> Affine:
    return mxfp4_matrix(look_up_pairs(arrays["weight"]), _exponents(arrays))


def _mxfp6(arrays: Arrays, size: Size) -> Affine:
    """Convert MXFP6 (e2m3), four codes in three bytes, the first in the lowest bits."""
    stored = arrays["weight_packed"].reshape(size.rows, -1, 3)
    first, second, third = (stored[:, :, at] for at in range(3))
    codes = np.empty((size.rows, stored.shape[1], 4), np.uint8)
    codes[:, :, 0] = first & 63
    codes[:, :, 1] = first >> 6 | (second & 15) << 2
    codes[:, :, 2] = second >> 4 | (third & 3) << 4
    codes[:, :, 3] = third >> 2
    exponents = _exponents(arrays)
    if exponents.max(initial=0) > LARGEST_EXPONENT:
        raise ValueError("a scale is NaN or above 2^117")
    scale = np.ldexp(np.float32(1), exponents.astype(np.int32) - 130)
    (held,) = narrow_to_float16(scale)
    q = _FLOAT6_VALUES[codes].reshape(size.rows, size.columns)
    return Affine(8, 32, q, held, zero_point=FLOAT6_ZERO)


def _exponents(arrays: Arrays) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(arrays["weight_scale"]).view(np.uint8)


def _sample(zero: int) -> Any:
    def sample(size: Size, float_types: set[str], symmetric: bool) -> Affine:
        q = np.full((1, size.columns), zero, np.uint8)
        scale = np.zeros((1, size.groups), np.float32)
        return Affine(8, size.group, q, scale, zero_point=zero)

    return sample


def _scales(types: tuple[str, ...]) -> Part:
    return Part(types, lambda size: ((size.rows, size.groups),))


_CODES = Part(("U8",), lambda size: ((size.rows, size.columns // 2),))
_FACTOR = Part(FLOATS, lambda size: SCALAR_SHAPES)

_MLX_PARTS = {
    "weight": Part(("U32",), lambda size: ((size.rows, size.columns // 8),)),
    "scales": _scales(("U8",)),
}

FLOAT4_LAYOUTS: dict[LayoutName, Layout] = {
    "nvfp4": Layout(
        "NVFP4",
        "weight_packed",
        {
            "weight_packed": _CODES,
            "weight_scale": _scales(("F8_E4M3",)),
            "weight_global_scale": _FACTOR,
        },
        _two_per_byte(_NVFP4),
        _nvfp4_ct,
        _sample(FLOAT4_ZERO),
        infer=lambda header: _NVFP4,
        ignored=("input_global_scale",),
    ),
    "nvfp4_modelopt": Layout(
        "NVFP4",
        "weight",
        {"weight": _CODES, "weight_scale": _scales(("F8_E4M3",)), "weight_scale_2": _FACTOR},
        _two_per_byte(_NVFP4),
        _nvfp4_modelopt,
        _sample(FLOAT4_ZERO),
        infer=lambda header: _NVFP4,
        ignored=("input_scale",),
    ),
    "mxfp4": Layout(
        "MXFP4",
        "weight_packed",
        {"weight_packed": _CODES, "weight_scale": _scales(EXPONENT_TYPES)},
        _two_per_byte(_MX),
        _mxfp4_ct,
        _sample(FLOAT4_ZERO),
        infer=lambda header: _MX,
        ignored=("input_global_scale",),
        cpu_bits=4,
    ),
    "mxfp4_modelopt": Layout(
        "MXFP4",
        "weight",
        {"weight": _CODES, "weight_scale": _scales(EXPONENT_TYPES)},
        _two_per_byte(_MX),
        _mxfp4_modelopt,
        _sample(FLOAT4_ZERO),
        infer=lambda header: _MX,
        ignored=("input_scale",),
        cpu_bits=4,
    ),
    "mlx_nvfp4": Layout(
        "NVFP4",
        "weight",
        _MLX_PARTS,
        _eight_per_word(_NVFP4),
        _nvfp4_mlx,
        _sample(FLOAT4_ZERO),
        accepts=_has_groups_of(16),
        stacked=True,
    ),
    "mlx_mxfp4": Layout(
        "MXFP4",
        "weight",
        _MLX_PARTS,
        _eight_per_word(_MX),
        _mxfp4_mlx,
        _sample(FLOAT4_ZERO),
        accepts=_has_groups_of(32),
        stacked=True,
        cpu_bits=4,
    ),
    "mxfp6": Layout(
        "MXFP6",
        "weight_packed",
        {
            "weight_packed": Part(("U8",), lambda size: ((size.rows, size.columns * 3 // 4),)),
            "weight_scale": _scales(EXPONENT_TYPES),
        },
        _four_in_three_bytes,
        _mxfp6,
        _sample(FLOAT6_ZERO),
        infer=lambda header: _MX,
        ignored=("input_global_scale",),
    ),
}
