"""Tiles of products with weights in 8-bit floats, for the kernels of linear layers and of
experts."""

from __future__ import annotations

from penstock.kernels.triton.language import tl, triton


@triton.jit
def _decoded(codes):
    """Return 8-bit float codes as float32, exactly: shift exponent and mantissa to their place in a
    float32, then multiply by 2 to the difference of the exponent biases."""
    wide = codes.to(tl.int32)
    bits = ((wide & 128) << 24) | ((wide & 127) << 20)
    number = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
    return tl.where((wide & 127) == 127, float("nan"), number)


@triton.jit
def _as_bfloat16(codes):
    """Return 8-bit float codes as bfloat16, exactly, by the method of `_decoded` for two codes at a
    time. A register holds four codes."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 low, high, shifted, sign, none;
        mov.b32 none, 0;
        prmt.b32 low, $2, none, 0x1404;
        prmt.b32 high, $2, none, 0x3424;
        shr.u32 shifted, low, 4;
        and.b32 shifted, shifted, 0x07f007f0;
        and.b32 sign, low, 0x80008000;
        or.b32 low, shifted, sign;
        shr.u32 shifted, high, 4;
        and.b32 shifted, shifted, 0x07f007f0;
        and.b32 sign, high, 0x80008000;
        or.b32 high, shifted, sign;
        mov.b32 shifted, 0x7b807b80;
        mov.b32 sign, 0x80008000;
        fma.rn.bf16x2 $0, low, shifted, sign;
        fma.rn.bf16x2 $1, high, shifted, sign;
        }""",
        "=r,=r,r",
        [codes],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def narrow_product(
    x_row, weight_row, x_scale, x_scales, scale, scales, present, exists, groups,
    GROUPED: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return a tile [BLOCK_M, BLOCK_N] of 8-bit activations times 8-bit weights, in float32.

    `x_row: [BLOCK_M, 1]`, `weight_row: [BLOCK_N, 1]`: pointers to the rows.
    `x_scale: [BLOCK_M]`, `scale: [BLOCK_N]`: pointers to the rows' scales of the first group.
    `x_scales`, `scales`: distance in elements between a row's scales of successive groups.
    `present`, `exists`: masks of the valid rows of activations and of weights.
    `groups`: groups of BLOCK_K columns; each is summed separately.
    GROUPED: every group has its own scales; otherwise the first scale applies to the whole row.
    UPCAST: decode codes to float32 before the product, for Triton's interpreter.
    """
    lane = tl.arange(0, BLOCK_K)
    x_place, weight_place = x_row + lane[None, :], weight_row + lane[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for group in range(groups):
        left = tl.load(x_place + group * BLOCK_K, mask=present[:, None], other=0.0)
        right = tl.load(weight_place + group * BLOCK_K, mask=exists[:, None], other=0.0)
        if UPCAST:
            left, right = _decoded(left), _decoded(right)
        part = tl.dot(left, tl.trans(right), input_precision="ieee")
        if GROUPED:
            row_step = tl.load(x_scale + group * x_scales, mask=present, other=0.0)
            step = tl.load(scale + group * scales, mask=exists, other=0.0)
            part = part * row_step[:, None] * step[None, :]
        total += part
    if not GROUPED:
        row_step = tl.load(x_scale, mask=present, other=0.0)
        step = tl.load(scale, mask=exists, other=0.0)
        total = total * row_step[:, None] * step[None, :]
    return total


@triton.jit
def widened_product(
    x_row, weight_row, scale, scales, scale_column, present, exists,
    WIDTH: tl.constexpr, GROUPED: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return a float32 tile [BLOCK_M, BLOCK_N] of the product of activations that are not quantized
    to 8 bits and 8-bit weights. Both are converted to bfloat16, or to float32 if WIDE.

    `x_row: [BLOCK_M, 1]`, `weight_row: [BLOCK_N, 1]`: pointers to the rows.
    `scale`: pointer to the scales. If GROUPED, each group of BLOCK_K columns has `scales` scales.
    `scale_column: [BLOCK_N]`: index of each row's scale in its group.
    `present`, `exists`: masks of the valid rows of activations and of weights.
    """
    lane = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for group in range((WIDTH + BLOCK_K - 1) // BLOCK_K):
        k = group * BLOCK_K + lane
        x_mask, weight_mask = present[:, None], exists[:, None]
        if WIDTH % BLOCK_K != 0:
            x_mask, weight_mask = x_mask & (k < WIDTH)[None, :], weight_mask & (k < WIDTH)[None, :]
        left = tl.load(x_row + k[None, :], mask=x_mask, other=0.0)
        stored = tl.load(weight_row + k[None, :], mask=weight_mask, other=0)
        if WIDE:
            left, right = left.to(tl.float32), _decoded(stored)
        else:
            left, right = left.to(tl.bfloat16), _as_bfloat16(stored)
        if GROUPED:
            step = tl.load(scale + group * scales + scale_column, mask=exists, other=0.0)
            total += tl.dot(left, tl.trans(right), input_precision="ieee") * step[None, :]
        else:
            total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
    if not GROUPED:
        step = tl.load(scale + scale_column, mask=exists, other=0.0)
        total = total * step[None, :]
    return total
