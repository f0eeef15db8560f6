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
    turned,
)
from penstock.quant.safetensors.quantization_schemes import Grouping, LayoutName

FLOAT6_ZERO: Final = 60
"""The integer that represents 0 in an `Affine` of e2m3, whose largest value is 7.5, or 60 / 8."""
EXPONENT_TYPES = ("U8", "F8_E8M0")

NVFP4_GROUPING = Grouping(8, 16)
MX_GROUPING = Grouping(8, 32)


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


def _four_in_three_bytes(shape: Shape, _: Grouping, header: Header) -> Size:
    return Size(shape[0], shape[1] * 4 // 3, MX_GROUPING)


def _nvfp4_ct(arrays: Arrays, size: Size) -> Affine:
    """Convert NVFP4 of compressed-tensors, whose global scale divides the scales."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        scale = E4M3[arrays["weight_scale"]] / np.float32(arrays["weight_global_scale"].item())
    return nvfp4_matrix(look_up_pairs(arrays["weight_packed"]), scale)


def _nvfp4_modelopt(arrays: Arrays, size: Size) -> Affine:
    """Convert NVFP4 of modelopt, whose second scale multiplies the scales. A stack of gates and ups
    may have one for each half of its rows."""
    factor = arrays["weight_scale_2"].reshape(-1, 1)
    if len(factor) == 2:
        factor = np.repeat(factor, size.rows // 2, axis=0)
    with np.errstate(over="ignore"):
        scale = E4M3[arrays["weight_scale"]] * factor
    return nvfp4_matrix(look_up_pairs(arrays["weight"]), scale)


def _nvfp4_turned(arrays: Arrays, size: Size) -> Affine:
    """Convert NVFP4 of modelopt whose matrices are transposed, as for gpt-oss: pairs and groups are
    those of a column of the stored matrix [C / 2, N]."""
    codes, scale = (turned(arrays[last]) for last in ("weight", "weight_scale"))
    return _nvfp4_modelopt({**arrays, "weight": codes, "weight_scale": scale}, size)


def _is_turned(header: Header) -> bool:
    codes, scales = (header.shapes[last][-2:] for last in ("weight", "weight_scale"))
    return len(codes) == len(scales) == 2 and (codes[0], codes[1]) == (scales[0] * 8, scales[1])


def _turned_size(shape: Shape, _: Grouping, header: Header) -> Size:
    return Size(shape[1], shape[0] * 2, NVFP4_GROUPING)


def nvfp4_matrix(q: npt.NDArray[np.uint8], scale: npt.NDArray[np.float32]) -> Affine:
    """Return the matrix of integers [N, C] from FLOAT4_VALUES with scales [N, C / 16]. Raises
    ValueError for a scale that is not finite."""
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
    return _mxfp6_codes(arrays["weight_packed"], arrays, size)


def _mxfp6_quark(arrays: Arrays, size: Size) -> Affine:
    return _mxfp6_codes(arrays["weight"], arrays, size)


def _mxfp6_codes(packed: npt.NDArray[Any], arrays: Arrays, size: Size) -> Affine:
    stored = packed.reshape(size.rows, -1, 3)
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


def sample_with_zero(zero: int) -> Any:
    """Return the function that returns a row of zeros; see `Layout`."""

    def sample(size: Size, float_types: set[str], symmetric: bool) -> Affine:
        q = np.full((1, size.columns), zero, np.uint8)
        scale = np.zeros((1, size.groups), np.float32)
        return Affine(8, size.group, q, scale, zero_point=zero)

    return sample


def one_per_group(types: tuple[str, ...]) -> Part:
    """Return the part with a number per row and group."""
    return Part(types, lambda size: ((size.rows, size.groups),))


_CODES = Part(("U8",), lambda size: ((size.rows, size.columns // 2),))
_FACTOR = Part(FLOATS, lambda size: SCALAR_SHAPES)
_FACTOR_OR_TWO = Part(FLOATS, lambda size: (*SCALAR_SHAPES, *_pair(size)))
_SIX_BITS = Part(("U8",), lambda size: ((size.rows, size.columns * 3 // 4),))


def _pair(size: Size) -> tuple[Shape, ...]:
    return ((2,),) if size.rows % 2 == 0 else ()


FLOAT4_LAYOUTS: dict[LayoutName, Layout] = {
    "nvfp4": Layout(
        "NVFP4",
        "weight_packed",
        {
            "weight_packed": _CODES,
            "weight_scale": one_per_group(("F8_E4M3",)),
            "weight_global_scale": _FACTOR,
        },
        _two_per_byte(NVFP4_GROUPING),
        _nvfp4_ct,
        sample_with_zero(FLOAT4_ZERO),
        infer=lambda header: NVFP4_GROUPING,
        ignored=("input_global_scale",),
    ),
    "nvfp4_modelopt": Layout(
        "NVFP4",
        "weight",
        {
            "weight": _CODES,
            "weight_scale": one_per_group(("F8_E4M3",)),
            "weight_scale_2": _FACTOR_OR_TWO,
        },
        _two_per_byte(NVFP4_GROUPING),
        _nvfp4_modelopt,
        sample_with_zero(FLOAT4_ZERO),
        infer=lambda header: NVFP4_GROUPING,
        accepts=lambda header: not _is_turned(header),
        stacked=True,
        ignored=("input_scale",),
    ),
    "nvfp4_turned": Layout(
        "NVFP4",
        "weight",
        {
            "weight": Part(("U8",), lambda size: ((size.columns // 2, size.rows),)),
            "weight_scale": Part(("F8_E4M3",), lambda size: ((size.groups, size.rows),)),
            "weight_scale_2": _FACTOR,
        },
        _turned_size,
        _nvfp4_turned,
        sample_with_zero(FLOAT4_ZERO),
        infer=lambda header: NVFP4_GROUPING,
        accepts=_is_turned,
        stacked=True,
        ignored=("input_scale",),
    ),
    "mxfp4": Layout(
        "MXFP4",
        "weight_packed",
        {"weight_packed": _CODES, "weight_scale": one_per_group(EXPONENT_TYPES)},
        _two_per_byte(MX_GROUPING),
        _mxfp4_ct,
        sample_with_zero(FLOAT4_ZERO),
        infer=lambda header: MX_GROUPING,
        ignored=("input_global_scale",),
        cpu_bits=4,
    ),
    "mxfp4_modelopt": Layout(
        "MXFP4",
        "weight",
        {"weight": _CODES, "weight_scale": one_per_group(EXPONENT_TYPES)},
        _two_per_byte(MX_GROUPING),
        _mxfp4_modelopt,
        sample_with_zero(FLOAT4_ZERO),
        infer=lambda header: MX_GROUPING,
        stacked=True,
        ignored=("input_scale",),
        cpu_bits=4,
    ),
    "mxfp6_quark": Layout(
        "MXFP6",
        "weight",
        {"weight": _SIX_BITS, "weight_scale": one_per_group(EXPONENT_TYPES)},
        _four_in_three_bytes,
        _mxfp6_quark,
        sample_with_zero(FLOAT6_ZERO),
        infer=lambda header: MX_GROUPING,
        ignored=("input_scale",),
    ),
    "mxfp6": Layout(
        "MXFP6",
        "weight_packed",
        {"weight_packed": _SIX_BITS, "weight_scale": one_per_group(EXPONENT_TYPES)},
        _four_in_three_bytes,
        _mxfp6,
        sample_with_zero(FLOAT6_ZERO),
        infer=lambda header: MX_GROUPING,
        ignored=("input_global_scale",),
    ),
}
