"""Reads and writes slots of a KV cache, for the references of the ops. Imports torch."""

from __future__ import annotations

import torch

from penstock.kernels.step_inputs import LayerCache

Cache = LayerCache[torch.Tensor]


def write_slots(
    cache: Cache, block: torch.Tensor, offset: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Write keys and values [T, K, D] to the slots `offset` of the blocks `block` [T]."""
    cache.keys[block, :, :, offset] = _as_floats(k, cache.keys.dtype, cache.key_scales)
    cache.values[block, :, offset] = _as_floats(v, cache.values.dtype, cache.value_scales)


def read_slots(
    cache: Cache, block: torch.Tensor, offset: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values [T, K, D] in the slots `offset` of the blocks `block` [T]."""
    keys, values = cache.keys[block, :, :, offset], cache.values[block, :, offset]
    keys = _from_floats(keys, dtype, cache.key_scales)
    return keys, _from_floats(values, dtype, cache.value_scales)


def _as_floats(x: torch.Tensor, dtype: torch.dtype, scales: torch.Tensor | None) -> torch.Tensor:
    """Return x [T, K, D] in the float type of a cache; 8-bit floats are x / `scales` [K]."""
    if scales is None:
        return x.to(dtype)
    most = torch.finfo(dtype).max
    return (x / scales[:, None]).clamp(-most, most).to(dtype)


def _from_floats(x: torch.Tensor, dtype: torch.dtype, scales: torch.Tensor | None) -> torch.Tensor:
    return x.to(dtype) if scales is None else x.to(dtype) * scales[:, None].to(dtype)
