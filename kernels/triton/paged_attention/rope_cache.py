"""Head norm, rotary embedding and KV cache write in one pass: a program computes one token and some
heads of q, k and v. The cache has the layout of `kernels.gpu_kv_cache`."""

from __future__ import annotations

import torch

from penstock.kernels.gpu_kv_cache import ALIGNED_ELEMENTS, is_token_major
from penstock.kernels.ops.rope_cache import ROPE_CACHE
from penstock.kernels.registry import Impl
from penstock.kernels.step_inputs import HeadNorm, LayerCache, StepInputs
from penstock.kernels.triton.compile.launch import ceil_div, launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton

_FEW_TOKENS = 32  # most tokens for which a program per head is better
_HEADS_A_PROGRAM = 8


@triton.jit(do_not_specialize=["eps", "key_stride", "value_stride"])
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
    key_scales,
    value_scales,
    eps,
    key_stride,
    value_stride,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROTATED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_NORM: tl.constexpr,
    SCALED: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Normalise and rotate some heads of one token, write q to `out`, and store k and v in the
    cache. A token with a negative slot is not stored. Element i of the first half of the rotated
    elements is paired with element i + half."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    lane = tl.arange(0, BLOCK)
    half: tl.constexpr = ROTATED // 2
    first, rotates = lane < half, lane < ROTATED
    partner = tl.where(first, lane + half, tl.where(rotates, lane - half, lane))
    source = qkv + ((token * (Q_HEADS + 2 * KV_HEADS) + head) * DIM)[:, None]
    exists = (head < Q_HEADS + 2 * KV_HEADS)[:, None]
    turning = (head < Q_HEADS + KV_HEADS)[:, None]
    inside = exists & (lane < DIM)[None, :]
    paired = turning & rotates[None, :]
    own = tl.load(source + lane[None, :], mask=inside, other=0.0).to(tl.float32)
    other = tl.load(source + partner[None, :], mask=paired, other=0.0).to(tl.float32)
    if HEAD_NORM:
        scale = 1.0 / tl.sqrt_rn(tl.sum(own * own, axis=1) / DIM + eps)
        is_q, is_k = (head < Q_HEADS)[:, None], (head >= Q_HEADS)[:, None]
        here, there = (lane < DIM)[None, :], rotates[None, :]
        q_own = tl.load(q_weight + lane[None, :], mask=here & is_q, other=0.0)
        k_own = tl.load(k_weight + lane[None, :], mask=here & is_k, other=0.0)
        q_other = tl.load(q_weight + partner[None, :], mask=there & is_q, other=0.0)
        k_other = tl.load(k_weight + partner[None, :], mask=there & is_k, other=0.0)
        own = tl.where(turning, own * scale[:, None] * (q_own + k_own).to(tl.float32), own)
        other = other * scale[:, None] * (q_other + k_other).to(tl.float32)
    angles = rope + tl.load(positions + token).to(tl.int64) * ROTATED
    angle = tl.where(first, lane, lane - half)
    cosine = tl.load(angles + angle, mask=rotates, other=1.0).to(tl.float32)
    sine = tl.load(angles + half + angle, mask=rotates, other=0.0).to(tl.float32)
    turned = own * cosine[None, :] + tl.where(first[None, :], -other, other) * sine[None, :]
    result = tl.where(paired, turned, own)
    is_query = inside & (head < Q_HEADS)[:, None]
    out_place = ((token * Q_HEADS + head) * DIM)[:, None] + lane[None, :]
    tl.store(out + out_place, result, mask=is_query)
    slot = tl.load(slots + token).to(tl.int64)
    block, offset = slot // BLOCK_TOKENS, slot % BLOCK_TOKENS
    k_head, v_head = head - Q_HEADS, head - Q_HEADS - KV_HEADS
    stored = slot + tl.zeros_like(head) >= 0
    is_key = inside & (stored & (k_head >= 0) & (v_head < 0))[:, None]
    is_value = inside & (stored & (v_head >= 0))[:, None]
    k_result, v_result = result, result
    if SCALED:
        k_result = _fitted(result, tl.load(key_scales + k_head, mask=(k_head >= 0) & (v_head < 0)))
        v_result = _fitted(
            result, tl.load(value_scales + v_head, mask=(v_head >= 0) & (v_head < KV_HEADS))
        )
    k_place = block * key_stride * 16 + (k_head * BLOCK_TOKENS + offset) * DIM
    v_place = block * value_stride * 16 + (v_head * BLOCK_TOKENS + offset) * DIM
    tl.store(keys + k_place[:, None] + lane[None, :], k_result, mask=is_key)
    tl.store(values + v_place[:, None] + lane[None, :], v_result, mask=is_value)


@triton.jit
def _fitted(values, scale):
    """Return values / scale, clamped to the range of e4m3, which has no infinity and overflows to
    NaN."""
    return tl.minimum(tl.maximum(values / scale[:, None], -448.0), 448.0)


def rope_cache(
    qkv: torch.Tensor,
    rope: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    head_norm: HeadNorm | None,
) -> torch.Tensor:
    """See `Ops.rope_cache`. `qkv` and `rope` are contiguous; the cache has the layout of
    `kernels.gpu_kv_cache`."""
    assert is_token_major(cache), "the cache must have the layout of kernels.gpu_kv_cache"
    q_heads, kv_heads, dim = heads
    all_heads = q_heads + 2 * kv_heads
    tokens = qkv.shape[0]
    out = qkv.new_empty(tokens, q_heads * dim)
    together = 1 if tokens <= _FEW_TOKENS else _HEADS_A_PROGRAM
    scaled = cache.key_scales is not None
    launch(
        rope_cache_kernel,
        (tokens, ceil_div(all_heads, together)),
        *(out, cache.keys, cache.values, qkv, rope, inputs.positions, inputs.slots),
        rope if head_norm is None else head_norm.q_weight,
        rope if head_norm is None else head_norm.k_weight,
        *((cache.key_scales, cache.value_scales) if scaled else (rope, rope)),
        0.0 if head_norm is None else head_norm.eps,
        *(part.stride(0) // ALIGNED_ELEMENTS for part in (cache.keys, cache.values)),
        num_warps=1 if together == 1 else 4,
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        ROTATED=rope.shape[1],
        BLOCK_TOKENS=cache.values.shape[2],
        HEAD_NORM=int(head_norm is not None),
        SCALED=int(scaled),
        HEADS=together,
        BLOCK=power_of_two(dim),
    )
    return out


ROPE_CACHE.register(Impl("triton", rope_cache, why_not, invariant_kinds=("float",)))
