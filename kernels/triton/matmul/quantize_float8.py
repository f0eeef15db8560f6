"""Rounds activations to 8-bit floats, with a scale per row or per 128 columns of a row."""

from __future__ import annotations

import torch

from penstock.kernels.ops.linear import FLOAT8_GROUP
from penstock.kernels.triton.compile.launch import ceil_div, in_units, interpreted, launch
from penstock.kernels.triton.language import tl, triton

_ROW_BLOCK = 4096
_GROUPS_A_PROGRAM = 8


@triton.jit
def _encoded(values):
    """Return the codes of float32 values, rounded half to even and limited to 448, as a GPU
    converts them. Triton's interpreter (3.6, 3.9) loses a carry in its own conversion."""
    magnitude = tl.minimum(tl.abs(values), 448.0)
    bits = magnitude.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Adding 1.5 * 2^23 leaves no bit below one: the addition itself rounds half to even.
    small = ((magnitude * 512.0 + 12582912.0) - 12582912.0).to(tl.int32)
    code = tl.where(magnitude < 0.015625, small, normal)
    code = tl.where(values != values, 127, code)
    return (code | tl.where(values < 0, 128, 0)).to(tl.uint8)


@triton.jit
def _quantized(values, step, ENCODE: tl.constexpr):
    """Return the codes of values / step; zeros if the step is zero. ENCODE: convert by
    `_encoded`."""
    quanta = tl.div_rn(values, tl.where(step > 0, step, 1.0))
    if ENCODE:
        result = _encoded(quanta)
    else:
        result = quanta.to(tl.float8e4nv)
    return result


@triton.jit(do_not_specialize=["rows", "units"])
def quantize_float8_kernel(
    codes,
    scale,
    x,
    rows,
    units,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPED: tl.constexpr,
    ENCODE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the codes and the scales of one row of `x`: a scale per GROUP columns if GROUPED,
    otherwise one for the row. Scales are stored as [groups, rows], so that neighbouring rows of a
    tile read neighbouring scales."""
    width = units * UNIT
    token = tl.program_id(0)
    source, target = x + token.to(tl.int64) * width, codes + token.to(tl.int64) * width
    if GROUPED:
        group = tl.program_id(1) * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
        place = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        values = tl.load(source + place, mask=place < width, other=0.0).to(tl.float32)
        step = tl.div_rn(tl.max(tl.abs(values), axis=1), 448.0)
        result = _quantized(values, step[:, None], ENCODE)
        tl.store(target + place, result, mask=place < width)
        tl.store(scale + group * rows + token, step, mask=group * GROUP < width)
    else:
        lane = tl.arange(0, BLOCK)
        largest = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in range(0, width, BLOCK):
            inside = start + lane < width
            values = tl.load(source + start + lane, mask=inside, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(values))
        step = tl.div_rn(tl.max(largest, axis=0), 448.0)
        for start in range(0, width, BLOCK):
            inside = start + lane < width
            values = tl.load(source + start + lane, mask=inside, other=0.0).to(tl.float32)
            tl.store(target + start + lane, _quantized(values, step, ENCODE), mask=inside)
        tl.store(scale + token, step)


def quantize_float8(
    x: torch.Tensor, grouped: bool, padded: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x [T, C] rounded to 8-bit float codes [P, C], and their float32 scales [groups, P]. A
    group has 128 columns if `grouped`; otherwise one group has all columns. P is the larger of T
    and `padded`; codes and scales of rows from T on are undefined."""
    tokens, width = x.shape
    units, unit = in_units(width)
    groups = ceil_div(width, FLOAT8_GROUP) if grouped else 1
    rows = max(tokens, padded)
    codes = torch.empty(rows, width, dtype=codes_type(), device=x.device)
    scale = torch.empty(groups, rows, dtype=torch.float32, device=x.device)
    block = _GROUPS_A_PROGRAM * FLOAT8_GROUP if grouped else _ROW_BLOCK
    launch(
        quantize_float8_kernel,
        (tokens, ceil_div(width, block) if grouped else 1),
        *(codes, scale, x, rows, units),
        UNIT=unit,
        GROUP=FLOAT8_GROUP,
        GROUPED=int(grouped),
        ENCODE=int(interpreted()),
        BLOCK=block,
    )
    return codes, scale


def codes_type() -> torch.dtype:
    """Return the type of the codes that kernels read: uint8 in Triton's interpreter, which
    multiplies decoded codes; otherwise an 8-bit float."""
    return torch.uint8 if interpreted() else torch.float8_e4m3fn
