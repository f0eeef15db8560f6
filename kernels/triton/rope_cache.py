"""Head norm, rotation and cache write in one pass, one program a token and head of q, k or v."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from penstock.kernels.op import Impl
from penstock.kernels.ops.rope_cache import ROPE_CACHE
from penstock.kernels.table import HeadNorm, LayerCache, StepInputs
from penstock.kernels.triton.launch import launch, power_of_two, why_not


@triton.jit
def _turned(source, weight, angles, eps, lane, DIM, ROTATED, HEAD_NORM: tl.constexpr):
    """One head [BLOCK], normalised and rotated. Element i of the first half pairs with i + half."""
    half = ROTATED // 2
    first = lane < half
    rotates = lane < ROTATED
    partner = tl.where(first, lane + half, tl.where(rotates, lane - half, lane))
    own = tl.load(source + lane, mask=lane < DIM, other=0.0).to(tl.float32)
    other = tl.load(source + partner, mask=rotates, other=0.0).to(tl.float32)
    if HEAD_NORM:
        scale = 1.0 / tl.sqrt_rn(tl.sum(own * own, axis=0) / DIM + eps)
        own = own * scale * tl.load(weight + lane, mask=lane < DIM, other=0.0)
        other = other * scale * tl.load(weight + partner, mask=rotates, other=0.0)
    angle = tl.where(first, lane, lane - half)
    cosine = tl.load(angles + angle, mask=rotates, other=1.0).to(tl.float32)
    sine = tl.load(angles + half + angle, mask=rotates, other=0.0).to(tl.float32)
    return own * cosine + tl.where(first, -other, other) * sine


@triton.jit(do_not_specialize=["eps"])
def rope_cache_kernel(
    out,
    keys,
    values,
    qkv,
    rope,
    positions,
    slots,
    q_weight,
    k_weight,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROTATED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_NORM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    inside = lane < DIM
    source = qkv + (token * (Q_HEADS + 2 * KV_HEADS) + head) * DIM
    angles = rope + tl.load(positions + token).to(tl.int64) * ROTATED
    slot = tl.load(slots + token).to(tl.int64)
    block, offset = slot // BLOCK_TOKENS, slot % BLOCK_TOKENS
    if head < Q_HEADS:
        turned = _turned(source, q_weight, angles, eps, lane, DIM, ROTATED, HEAD_NORM)
        tl.store(out + (token * Q_HEADS + head) * DIM + lane, turned, mask=inside)
    elif head < Q_HEADS + KV_HEADS:
        turned = _turned(source, k_weight, angles, eps, lane, DIM, ROTATED, HEAD_NORM)
        components = (block * KV_HEADS + head - Q_HEADS) * DIM + lane
        tl.store(keys + components * BLOCK_TOKENS + offset, turned, mask=inside)
    else:
        value = tl.load(source + lane, mask=inside, other=0.0).to(tl.float32)
        row = (block * KV_HEADS + head - Q_HEADS - KV_HEADS) * BLOCK_TOKENS + offset
        tl.store(values + row * DIM + lane, value, mask=inside)


def rope_cache(
    qkv: torch.Tensor,
    rope: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    head_norm: HeadNorm | None,
) -> torch.Tensor:
    """See `Ops.rope_cache`. `qkv`, `rope` and the cache are contiguous."""
    q_heads, kv_heads, dim = heads
    out = qkv.new_empty(len(qkv), q_heads * dim)
    launch(
        rope_cache_kernel,
        (len(qkv), q_heads + 2 * kv_heads),
        *(out, cache.keys, cache.values, qkv, rope, inputs.positions, inputs.slots),
        rope if head_norm is None else head_norm.q_weight,
        rope if head_norm is None else head_norm.k_weight,
        0.0 if head_norm is None else head_norm.eps,
        num_warps=1,
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        ROTATED=rope.shape[1],
        BLOCK_TOKENS=cache.keys.shape[3],
        HEAD_NORM=int(head_norm is not None),
        BLOCK=power_of_two(dim),
    )
    return out


ROPE_CACHE.register(Impl("triton", rope_cache, why_not, invariant_kinds=("float",)))
