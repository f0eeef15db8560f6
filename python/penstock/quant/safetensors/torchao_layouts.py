"""The layout of torchao's Int4Tensor: signed 4-bit integers in groups with real zero points.

torchao's other tensors have the layouts of compressed-tensors under other names: see
`torchao_config`.
"""

from __future__ import annotations

import numpy as np

from penstock.quant.safetensors.layout import (
    FACTORS_BY_GROUP,
    Arrays,
    Header,
    Layout,
    Numbers,
    Part,
    Shape,
    Size,
    even_grouping,
    minima_sample,
    turned,
)
from penstock.quant.safetensors.quantization_schemes import Grouping, LayoutName


def _size(shape: Shape, grouping: Grouping, header: Header) -> Size:
    return Size(shape[0], shape[1] * 2, grouping)


def _grouping(header: Header) -> Grouping | None:
    codes, scales = header.shapes["weight"], header.shapes.get("weight_scale", ())
    return even_grouping(4, codes[-1] * 2, scales[-2]) if len(scales) > 1 else None


def _read(arrays: Arrays, size: Size) -> Numbers:
    """Convert w = scale * q + zero, with q from -8 to 7: the minimum is zero - 8 * scale. The first
    column of two is in the low nibble."""
    q = np.ascontiguousarray(arrays["weight"]).view(np.uint8) ^ np.uint8(0x88)
    scale, zero = (turned(arrays[last]) for last in ("weight_scale", "weight_zero_point"))
    minimum = (zero.astype(np.float64) - 8 * scale.astype(np.float64)).astype(np.float32)
    return Numbers(q, scale, minimum=minimum)


TORCHAO_LAYOUTS: dict[LayoutName, Layout] = {
    "torchao_int4": Layout(
        "torchao int4",
        "weight",
        {
            "weight": Part(("I8", "U8"), lambda size: ((size.rows, size.columns // 2),)),
            "weight_scale": FACTORS_BY_GROUP,
            "weight_zero_point": FACTORS_BY_GROUP,
        },
        _size,
        _read,
        lambda size, float_types, symmetric: minima_sample(size, {"F32"}, symmetric),
        infer=_grouping,
        stacked=True,
    ),
}
