"""A case's inputs as a GPU serves them: its types of activations and cache, and its layout."""

from __future__ import annotations

from typing import Any

import torch

from penstock.kernels.cases.random_inputs import map_tensors
from penstock.kernels.gpu_kv_cache import token_major
from penstock.kernels.ops_interface import LayerCache
from penstock.kernels.registry import Inputs

_LARGEST = 448.0  # of float8_e4m3fn

_ACTIVATIONS = frozenset({"x", "residual", "qkv", "q", "gate_up"})


def as_gpu_inputs(inputs: Inputs, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """The inputs with activations and cache in `dtype` (None: as they are), the cache token by
    token. Norm weights, rope tables and logits stay float32."""
    served = dict(inputs)
    if "cache" in served:
        served["cache"] = token_major(served["cache"])
    if dtype is not None:
        for name in served.keys() & (_ACTIVATIONS | {"cache"}):
            served[name] = map_tensors(served[name], lambda tensor: tensor.to(dtype))
    return served


def in_float8_cache(
    drawn: LayerCache[torch.Tensor],
) -> tuple[LayerCache[torch.Tensor], LayerCache[torch.Tensor]]:
    """A cache in eight bits, with a scale for each head, as it lies on a GPU; and what it means, in
    float64. What nobody wrote is 0."""
    scales = 0.5 ** torch.arange(4, 4 + drawn.keys.shape[1])
    spread = scales[:, None, None]
    parts = [part.float().nan_to_num() / spread for part in (drawn.keys, drawn.values)]
    held = [part.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn) for part in parts]
    meant = LayerCache(*(part.double() * spread for part in held))
    return token_major(LayerCache(*held, scales, scales.clone())), meant
