"""Reads and writes slots of a KV cache of any kind, for the references of the ops. Imports torch.

An 8-bit cache on a CPU has int8 elements and one float32 scale per token and KV head, for keys and
for values: a number is its element times that scale. A scale depends on the key or value of its own
token only, so that a slot has the same bits however its token was computed. `LayerCache` has the
layout. A cache of 8-bit floats has one scale per KV head, [K].
"""

from __future__ import annotations

import torch

from penstock.kernels.step_inputs import SCALE_BYTES, LayerCache

LARGEST = 127
LEAST_PEAK = 1e-30
"""Numbers that are all smaller than this are stored as zeros: their scale would have no inverse."""

Cache = LayerCache[torch.Tensor]


def rounded_heads(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round x [..., D] to int8, half to even, and return it with its scales [...] float32: a 127th
    of the largest number of each row, or NaN if a number of the row is not finite."""
    x = x.float()
    peak = x.abs().amax(-1)
    usable = peak > LEAST_PEAK
    factor = torch.where(usable, LARGEST / peak, torch.zeros(()))
    codes = (x * factor[..., None]).nan_to_num().round().clamp(-LARGEST, LARGEST)
    scales = torch.where(usable, peak / LARGEST, torch.zeros(()))
    finite = x.isfinite().all(-1)
    return codes.to(torch.int8), torch.where(finite, scales, torch.full((), torch.nan))


def write_slots(
    cache: Cache, block: torch.Tensor, offset: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Write keys and values [T, K, D] to the slots `offset` of the blocks `block` [T]."""
    if cache.keys.dtype != torch.int8:
        cache.keys[block, :, :, offset] = _as_floats(k, cache.keys.dtype, cache.key_scales)
        cache.values[block, :, offset] = _as_floats(v, cache.values.dtype, cache.value_scales)
        return
    keys, key_scales, values, value_scales = _int8_parts(cache)
    codes, scales = rounded_heads(k)
    keys[block, :, :, offset] = codes.unflatten(-1, (-1, 2))
    key_scales[block, :, offset] = scales
    codes, scales = rounded_heads(v)
    values[block, :, offset // 2, :, offset % 2] = codes
    value_scales[block, :, offset] = scales


def read_slots(
    cache: Cache, block: torch.Tensor, offset: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values [T, K, D] in the slots `offset` of the blocks `block` [T]."""
    if cache.keys.dtype != torch.int8:
        keys, values = cache.keys[block, :, :, offset], cache.values[block, :, offset]
        keys = _from_floats(keys, dtype, cache.key_scales)
        return keys, _from_floats(values, dtype, cache.value_scales)
    of_keys, key_scales, of_values, value_scales = _int8_parts(cache)
    keys = of_keys[block, :, :, offset].flatten(-2).to(dtype)
    values = of_values[block, :, offset // 2, :, offset % 2].to(dtype)
    keys = keys * key_scales[block, :, offset, None].to(dtype)
    return keys, values * value_scales[block, :, offset, None].to(dtype)


def _as_floats(x: torch.Tensor, dtype: torch.dtype, scales: torch.Tensor | None) -> torch.Tensor:
    """Return x [T, K, D] in the float type of a cache; 8-bit floats are x / `scales` [K]."""
    if scales is None:
        return x.to(dtype)
    most = torch.finfo(dtype).max
    return (x / scales[:, None]).clamp(-most, most).to(dtype)


def _from_floats(x: torch.Tensor, dtype: torch.dtype, scales: torch.Tensor | None) -> torch.Tensor:
    return x.to(dtype) if scales is None else x.to(dtype) * scales[:, None].to(dtype)


def _int8_parts(
    cache: Cache,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return views: keys [B, K, D / 2, P, 2] and their scales [B, K, P] float32, values [B, K,
    P / 2, D, 2] and their scales."""
    blocks, heads, rows, size = cache.keys.shape
    dim = rows - SCALE_BYTES
    keys, key_scales = _split(cache.keys, dim * size)
    values, value_scales = _split(cache.values, dim * size)
    keys = keys.view(blocks, heads, dim // 2, size, 2)
    return keys, key_scales, values.view(blocks, heads, size // 2, dim, 2), value_scales


def _split(part: torch.Tensor, elements: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat = part.flatten(2)
    return flat[..., :elements], flat[..., elements:].view(torch.float32)
