"""Converts the inputs of a test case to the element types and the KV cache layout of a GPU."""

from __future__ import annotations

from typing import Any

import torch

from penstock.kernels.cases.random_inputs import map_tensors
from penstock.kernels.gpu_kv_cache import token_major
from penstock.kernels.registry import Inputs
from penstock.kernels.step_inputs import LayerCache

_LARGEST = 448.0  # the largest finite float8_e4m3fn

_ACTIVATIONS = frozenset(
    {"x", "residual", "qkv", "kv", "q", "gate_up", "gate", "gates", "xbc", "dt"}
)


def as_gpu_inputs(inputs: Inputs, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Return the inputs with activations and KV cache converted to `dtype` (None: unchanged), and
    with the keys of the cache stored token by token. Norm weights, rope tables and logits stay
    float32."""
    served = dict(inputs)
    if "cache" in served:
        served["cache"] = token_major(served["cache"])
    if dtype is not None:
        for name in served.keys() & (_ACTIVATIONS | {"cache"}):
            served[name] = map_tensors(served[name], lambda tensor: tensor.to(dtype))
    return served


def in_float8_cache(
    cache: LayerCache[torch.Tensor],
) -> tuple[LayerCache[torch.Tensor], LayerCache[torch.Tensor]]:
    """Return a copy of the cache in float8_e4m3fn and in the GPU layout, with one scale per KV
    head, and the values that the copy represents, in float64. Slots that were not written are 0 in
    both."""
    scales = 0.5 ** torch.arange(4, 4 + cache.keys.shape[1])
    spread = scales[:, None, None]
    parts = [part.float().nan_to_num() / spread for part in (cache.keys, cache.values)]
    keys, values = (part.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn) for part in parts)
    exact = LayerCache(keys.double() * spread, values.double() * spread)
    return token_major(LayerCache(keys, values, scales, scales.clone())), exact
