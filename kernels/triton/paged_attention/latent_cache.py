"""Norm and rotation of the latents of new tokens, and the write to their KV cache: a program
computes one token. The cache has the layout that `kernels.gpu_kv_cache` states for latents."""

from __future__ import annotations

import torch

from penstock.kernels.gpu_kv_cache import ALIGNED_ELEMENTS, is_latent_cache
from penstock.kernels.ops.latent_attention import LATENT_CACHE
from penstock.kernels.registry import Impl
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.triton.compile.launch import launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton


@triton.jit(do_not_specialize=["eps", "key_stride", "value_stride"])
def latent_cache_kernel(
    keys,
    values,
    kv,
    norm_weight,
    rope,
    positions,
    slots,
    eps,
    key_stride,
    value_stride,
    LATENT: tl.constexpr,
    ROTATED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    APART: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Store the key of one token, and its value if values are APART from keys. A token with a
    negative slot is not stored."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    width: tl.constexpr = LATENT + ROTATED
    half: tl.constexpr = ROTATED // 2
    if slot >= 0:
        lane, turn = tl.arange(0, BLOCK), tl.arange(0, BLOCK_R)
        inside, turns = lane < LATENT, turn < half
        latent = tl.load(kv + token * width + lane, mask=inside, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt_rn(tl.sum(latent * latent, axis=0) / LATENT + eps)
        weight = tl.load(norm_weight + lane, mask=inside, other=0.0).to(tl.float32)
        result = latent * scale * weight
        source = kv + token * width + LATENT + turn
        first = tl.load(source, mask=turns, other=0.0).to(tl.float32)
        second = tl.load(source + half, mask=turns, other=0.0).to(tl.float32)
        angles = rope + tl.load(positions + token).to(tl.int64) * ROTATED + turn
        cosine = tl.load(angles, mask=turns, other=1.0).to(tl.float32)
        sine = tl.load(angles + half, mask=turns, other=0.0).to(tl.float32)
        block, offset = slot // BLOCK_TOKENS, slot % BLOCK_TOKENS
        key = keys + block * key_stride * 16 + offset * width
        tl.store(key + lane, result, mask=inside)
        tl.store(key + LATENT + turn, first * cosine - second * sine, mask=turns)
        tl.store(key + LATENT + half + turn, second * cosine + first * sine, mask=turns)
        if APART:
            value = values + block * value_stride * 16 + offset * LATENT
            tl.store(value + lane, result, mask=inside)


def latent_cache(
    kv: torch.Tensor,
    norm_weight: torch.Tensor,
    rope: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    eps: float,
) -> None:
    """See `Ops.latent_cache`. `kv`, `norm_weight` and `rope` are contiguous."""
    assert is_latent_cache(cache), "the cache must have the layout of kernels.gpu_kv_cache"
    latent = norm_weight.shape[0]
    launch(
        latent_cache_kernel,
        (kv.shape[0],),
        *(cache.keys, cache.values, kv, norm_weight, rope, inputs.positions, inputs.slots, eps),
        *(part.stride(0) // ALIGNED_ELEMENTS for part in (cache.keys, cache.values)),
        num_warps=2,
        LATENT=latent,
        ROTATED=kv.shape[1] - latent,
        BLOCK_TOKENS=cache.values.shape[2],
        APART=int(cache.values.stride(2) == latent),
        BLOCK=power_of_two(latent),
        BLOCK_R=power_of_two((kv.shape[1] - latent) // 2),
    )


LATENT_CACHE.register(Impl("triton", latent_cache, why_not))
