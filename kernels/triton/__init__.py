"""Triton implementations of the ops, and `TritonOps` over them.

Nothing outside this package imports triton. Wrappers check and allocate; kernels only compute.
"""

from __future__ import annotations

import torch

from penstock.kernels.op import KernelTable, Machine
from penstock.kernels.ops import all_ops
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton import (
    activation,
    adjust,
    attention,
    embedding,
    gather,
    layer_norm,
    linear,
    lora,
    norm,
    pooling,
    rope_cache,
    rows,
    sampling,
)
from penstock.kernels.triton.launch import interpreted

__all__ = [
    "TritonOps",
    "activation",
    "adjust",
    "attention",
    "embedding",
    "gather",
    "layer_norm",
    "linear",
    "lora",
    "norm",
    "pooling",
    "rope_cache",
    "rows",
    "sampling",
]


def machine_of(device: str) -> Machine:
    """What Triton may rely on there."""
    if not device.startswith("cuda"):
        return Machine("cpu", interpreted=interpreted())
    major, minor = torch.cuda.get_device_capability(device)
    return Machine("cuda", 10 * major + minor)


class TritonOps(TorchOps):
    """`Ops[torch.Tensor]` on a CUDA device, or on CPU tensors in Triton's interpreter. What has no
    Triton kernel falls to the reference body on the same device. Raises LookupError where neither
    can run."""

    def __init__(self, device: str = "cuda", dtype: torch.dtype = torch.float32) -> None:
        names = frozenset({"triton", "reference"})
        super().__init__(KernelTable(all_ops(), machine_of(device), names), device, dtype)
