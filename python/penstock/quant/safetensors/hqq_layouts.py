"""The layouts of HQQ: integers of 1 to 8 bits with real zero points, in groups of columns (axis 1)
or of rows (axis 0)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense
from penstock.quant.affine import pack_nibbles
from penstock.quant.safetensors.layout import (
    FLOATS,
    Arrays,
    Header,
    Layout,
    Numbers,
    Part,
    Shape,
    Size,
    minima_sample,
    rounded,
)
from penstock.quant.safetensors.quantization_schemes import Grouping, LayoutName

# The other tensors of a module, which repeat the configuration.
_METADATA = (
    "packing",
    "unpack_view_dtype",
    "view_as_float",
    "quant_scale",
    "quant_zero",
    "compute_dtype",
    "offload_meta",
    "encoded_state_dict",
    "stores_quant_config",
    "channel_wise",
    "optimize",
    "round_zero",
)
_BITS = (1, 2, 3, 4, 8)


def _size(shape: Shape, grouping: Grouping, header: Header) -> Size:
    """Return the size from the tensors `shape`, `nbits` and `group_size`."""
    given = header.peek("shape")
    if given is None or given.size != 2 or not (given > 0).all():
        raise ValueError("its tensor shape must be two positive numbers")
    rows, columns = int(given[0]), int(given[1])
    bits, group = (_integer(header, last) for last in ("nbits", "group_size"))
    if bits not in _BITS:
        raise ValueError(f"integers of {bits} bits are not supported, known: 1, 2, 3, 4, 8")
    if group <= 0 or rows * columns % group:
        raise ValueError(f"group_size {group} does not divide the matrix [{rows}, {columns}]")
    axis = _integer(header, "axis")
    if axis not in (0, 1):
        raise ValueError(f"axis {axis} is not supported, known: 0, 1")
    by_rows = axis == 0
    if not by_rows and (columns % group or group % 32):
        raise ValueError(f"group_size {group} is not supported for rows of {columns} columns")
    return Size(rows, columns, Grouping(bits, group), header.floats("scale") if by_rows else None)


def _integer(header: Header, last: str) -> int:
    values = header.peek(last)
    return -1 if values is None or values.size != 1 else int(values.reshape(()))


def _lines(size: Size) -> int:
    """Return the number of rows of the matrix that HQQ packs: groups are its rows, or for axis 0
    its columns."""
    group = size.group
    return group if size.floats is not None else size.rows * size.columns // group


def _packed_shapes(size: Size) -> tuple[Shape, ...]:
    each = 10 if size.grouping.bits == 3 else 8 // size.grouping.bits
    lines = _lines(size)
    return ((-(-lines // each), size.rows * size.columns // lines),)


def _unpacked(arrays: Arrays, size: Size) -> npt.NDArray[np.uint8]:
    """Return the integers [N, C]. A byte (or for 3 bits a word) packs integers of rows that are a
    whole number of packed rows apart, the first row in the highest bits."""
    bits, stored = size.grouping.bits, arrays["W_q"]
    each = 10 if bits == 3 else 8 // bits
    shifts = range((each - 1) * bits, -1, -bits)
    parts = [(stored >> shift & 2**bits - 1).astype(np.uint8) for shift in shifts]
    return np.concatenate(parts)[: _lines(size)].reshape(size.rows, size.columns)


def _columns_grouped(arrays: Arrays, size: Size) -> Numbers:
    """Convert groups of columns: w = scale * (q - zero), with the minimum -zero * scale. The
    product of two float16 or bfloat16 is exact in float32."""
    q = _unpacked(arrays, size)
    scale, zero = (arrays[last].reshape(size.rows, size.groups) for last in ("scale", "zero"))
    minimum = (-zero.astype(np.float64) * scale).astype(np.float32)
    if not np.isfinite(minimum).all():
        raise ValueError("not all minima fit into float32")
    held = pack_nibbles(q) if size.grouping.held_bits == 4 else q
    return Numbers(held, scale, minimum=minimum)


def _rows_grouped(arrays: Arrays, size: Size) -> Dense:
    """Convert groups of rows to floats of the type of the scales, rounded once."""
    q = _unpacked(arrays, size).reshape(size.group, -1)
    values = (q - arrays["zero"].astype(np.float64)) * arrays["scale"]
    assert size.floats is not None
    return rounded(values.astype(np.float32).reshape(size.rows, size.columns), size.floats)


def _sample(size: Size, float_types: set[str], symmetric: bool) -> Any:
    return minima_sample(size, {"F32"}, symmetric)


def _parts(axis: int) -> dict[str, Part]:
    def factors(size: Size) -> tuple[Shape, ...]:
        count = size.rows * size.columns // size.group
        return ((count, 1), (count,)) if axis == 1 else ((1, count), (count,))

    number = Part(("I32", "I64", "U8"), lambda size: ((), (1,)))
    return {
        "W_q": Part(("U8", "I32"), _packed_shapes),
        "scale": Part(FLOATS, factors),
        "zero": Part(FLOATS, factors),
        "shape": Part(("I64", "I32"), lambda size: ((2,),)),
        "nbits": number,
        "group_size": number,
        "axis": number,
    }


def _has_axis(axis: int) -> Any:
    return lambda header: _integer(header, "axis") == axis


def _any_grouping(header: Header) -> Grouping:
    return Grouping(8, None)  # `_size` reads it


HQQ_LAYOUTS: dict[LayoutName, Layout] = {
    "hqq": Layout(
        "HQQ",
        "W_q",
        _parts(1),
        _size,
        _columns_grouped,
        _sample,
        infer=_any_grouping,
        accepts=_has_axis(1),
        ignored=_METADATA,
    ),
    "hqq_rows": Layout(
        "HQQ in groups of rows",
        "W_q",
        _parts(0),
        _size,
        _rows_grouped,
        _sample,
        infer=_any_grouping,
        accepts=_has_axis(0),
        ignored=_METADATA,
    ),
}
