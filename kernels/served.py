"""A case's inputs as a GPU serves them: its types of activations and cache, and its layout."""

from __future__ import annotations

from typing import Any

import torch

from penstock.kernels.draw import map_tensors
from penstock.kernels.gpu_cache import token_major
from penstock.kernels.op import Inputs

_ACTIVATIONS = frozenset({"x", "residual", "qkv", "q", "gate_up"})


def as_served(inputs: Inputs, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """The inputs with activations and cache in `dtype` (None: as they are), the cache token by
    token. Norm weights, rope tables and logits stay float32."""
    served = dict(inputs)
    if "cache" in served:
        served["cache"] = token_major(served["cache"])
    if dtype is not None:
        for name in served.keys() & (_ACTIVATIONS | {"cache"}):
            served[name] = map_tensors(served[name], lambda tensor: tensor.to(dtype))
    return served
