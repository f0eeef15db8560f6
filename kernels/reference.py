"""The references of the ops as an implementation of `Ops`, slow but correct by definition."""

from __future__ import annotations

import torch

from penstock.kernels.ops import all_ops
from penstock.kernels.registry import KernelRegistry, Machine
from penstock.kernels.torch_ops import TorchOps


class ReferenceOps(TorchOps):
    """`Ops[torch.Tensor]` that uses only the references. In float64, its results are the truth of
    the tests."""

    def __init__(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        machine = Machine("cuda" if device.startswith("cuda") else "cpu")
        super().__init__(
            KernelRegistry(all_ops(), machine, frozenset({"reference"})), device, dtype
        )
