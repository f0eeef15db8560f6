"""Triton kernels of the ops, and `TritonOps`, which runs them.

Only this package imports triton. Wrappers check arguments and allocate results; kernels only
compute. Importing the package imports all its modules except `compile`, so that each module
registers its kernels.
"""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal

import torch

from penstock.kernels.arrays import tensor_of
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import KernelRegistry, Machine
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton.compile.launch import interpreted
from penstock.kernels.triton.embedding import PackedTable
from penstock.kernels.triton.matmul import linear
from penstock.kernels.triton.moe import packed_experts
from penstock.kernels.weights import Experts, Linear, Matrix

for _info in pkgutil.walk_packages(__path__, f"{__name__}."):
    if not _info.name.startswith(f"{__name__}.compile"):
        import_module(_info.name)


def machine_of(device: str) -> Machine:
    """Return the type and compute capability of `device`, by which the registry selects kernels."""
    if not device.startswith("cuda"):
        return Machine("cpu", interpreted=interpreted())
    major, minor = torch.cuda.get_device_capability(device)
    return Machine("cuda", 10 * major + minor)


class TritonOps(TorchOps):
    """Runs the ops (`Ops[torch.Tensor]`) on a CUDA device, or on CPU tensors in Triton's
    interpreter. An op without a Triton kernel runs its PyTorch reference on the same device. Raises
    LookupError if an op has neither.

    The KV cache has the layout of `kernels.gpu_kv_cache`; step inputs are int32 tensors on the
    device. Norm weights and rope tables stay float32, and sums are computed in float32. A step can
    be captured in a CUDA graph if `SamplingRows` holds device tensors (see `sampling_operands`) and
    `StepInputs.work` holds the results of `decode_work`: wrappers then neither read from the device
    nor copy from the host.
    """

    def __init__(
        self,
        device: str = "cuda",
        dtype: torch.dtype = torch.float32,
        names: frozenset[str] = frozenset({"triton", "reference"}),
        products: Literal["measured", "invariant"] = "measured",
        dense: Literal["stored", "float8"] = "stored",
    ) -> None:
        """Select the kernels that `device` can run.

        `dtype`: type of activations and of dense weights on the device; serving uses bfloat16.
        `names`: the kernel backends to select from.
        `products`: "measured" uses the kernel that measured fastest for the number of rows;
        "invariant" uses a kernel whose sums do not depend on the number of rows.
        `dense`: "float8" rounds the dense weights of layers, except output heads and routers, to
        8-bit floats; "stored" does not round.
        """
        self._products = products
        self._dense = dense
        super().__init__(KernelRegistry(all_ops(), machine_of(device), names), device, dtype)

    def constant(self, array: Any) -> torch.Tensor:
        """Return `array` as a tensor on the device. Floats become float32 even if activations have
        another type."""
        tensor = tensor_of(array).to(self.device)
        return tensor.float() if tensor.is_floating_point() else tensor

    def pack_linear(self, weight: Linear) -> Any:
        """See `Ops.pack_linear`."""
        packed = self._packed(weight)
        return linear.rounded_to_float8(packed) if self._dense == "float8" else packed

    def pack_head(self, weight: Linear) -> Any:
        """See `Ops.pack_head`."""
        return replace(self._packed(weight), result=torch.float32)

    def _packed(self, weight: Linear) -> linear.PackedLinear:
        packed: linear.PackedLinear = super().pack_linear(weight)
        return replace(packed, invariant=self._products == "invariant")

    def pack_experts(self, weights: Experts) -> Any:
        """See `Ops.pack_experts`."""
        packed = super().pack_experts(weights)
        if self._dense == "float8":
            packed = packed_experts.rounded_to_float8(packed)
        return replace(packed, invariant=self._products == "invariant")

    def pack_tied(self, table: Matrix) -> tuple[Any, Any]:
        """See `Ops.pack_tied`. The table and the head share one copy of the weights."""
        head = self.pack_head(Linear((table,)))
        return PackedTable(head.parts[0], self.dtype), head
