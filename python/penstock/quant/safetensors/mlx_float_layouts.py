"""The layouts of MLX's modes of floats: NVFP4, MXFP4 and MXFP8. Words pack neighbouring columns of
a row, the first in the lowest bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import FLOAT4_ZERO, Affine, Dense, Float8
from penstock.quant.float8 import E4M3, float8_to_bfloat16, largest_scale, powers_of_two
from penstock.quant.mxfp4 import look_up_pairs, mxfp4_matrix
from penstock.quant.safetensors.float4_layouts import (
    MX_GROUPING,
    NVFP4_GROUPING,
    nvfp4_matrix,
    one_per_group,
    sample_with_zero,
)
from penstock.quant.safetensors.layout import (
    Arrays,
    Header,
    Layout,
    Part,
    Shape,
    Size,
    float_sample,
)
from penstock.quant.safetensors.quantization_schemes import Grouping, LayoutName


def _eight_per_word(grouping: Grouping) -> Any:
    def size(shape: Shape, _: Grouping, header: Header) -> Size:
        return Size(shape[0], shape[1] * 8, grouping)

    return size


def _four_per_word(shape: Shape, _: Grouping, header: Header) -> Size:
    return Size(shape[0], shape[1] * 4, MX_GROUPING, "bf16")


def _has_groups_of(columns: int, per_word: int) -> Any:
    """Return whether the shapes of words and scales are those of groups of `columns` columns."""

    def accepts(header: Header) -> bool:
        words, scales = (header.shapes[last][-1:] for last in ("weight", "scales"))
        return bool(words and scales) and words[0] * per_word == scales[0] * columns

    return accepts


def _nvfp4(arrays: Arrays, size: Size) -> Affine:
    """Convert NVFP4, which has no second scale."""
    return nvfp4_matrix(_of_words(arrays), E4M3[arrays["scales"]])


def _mxfp4(arrays: Arrays, size: Size) -> Affine:
    return mxfp4_matrix(_of_words(arrays), np.ascontiguousarray(arrays["scales"]))


def _of_words(arrays: Arrays) -> npt.NDArray[np.uint8]:
    return look_up_pairs(np.ascontiguousarray(arrays["weight"]).view(np.uint8))


def _mxfp8(arrays: Arrays, size: Size) -> Dense:
    """Convert MXFP8 to bfloat16, which is exact: no kernel reads a scale per 32 columns."""
    codes = np.ascontiguousarray(arrays["weight"]).view(np.uint8)
    if (codes & 0x7F == 0x7F).any():
        raise ValueError("not all weights are finite")
    scale = powers_of_two(arrays["scales"])
    if not (scale <= largest_scale(E4M3)).all():
        raise ValueError("not all scales are finite")
    return float8_to_bfloat16(Float8(codes, scale, (1, 32)))


def _bfloat16_sample(size: Size, float_types: set[str], symmetric: bool) -> Dense:
    return float_sample(size, "bf16")


def _parts(per_word: int) -> dict[str, Part]:
    words = Part(("U32",), lambda size: ((size.rows, size.columns // per_word),))
    return {"weight": words, "scales": one_per_group(("U8",))}


MLX_FLOAT_LAYOUTS: dict[LayoutName, Layout] = {
    "mlx_nvfp4": Layout(
        "NVFP4",
        "weight",
        _parts(8),
        _eight_per_word(NVFP4_GROUPING),
        _nvfp4,
        sample_with_zero(FLOAT4_ZERO),
        accepts=_has_groups_of(16, 8),
        stacked=True,
    ),
    "mlx_mxfp4": Layout(
        "MXFP4",
        "weight",
        _parts(8),
        _eight_per_word(MX_GROUPING),
        _mxfp4,
        sample_with_zero(FLOAT4_ZERO),
        accepts=_has_groups_of(32, 8),
        stacked=True,
        cpu_bits=4,
    ),
    "mlx_mxfp8": Layout(
        "MXFP8",
        "weight",
        _parts(4),
        _four_per_word,
        _mxfp8,
        _bfloat16_sample,
        accepts=_has_groups_of(32, 4),
        stacked=True,
    ),
}
