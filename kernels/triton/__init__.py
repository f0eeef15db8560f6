"""Triton implementations of the ops, and `TritonOps` over them.

Only this package imports triton. Wrappers check and allocate; kernels only compute. Importing the
package imports every module in it except `compile`, and with them their registrations.
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
    """Return the facts about `device` on which the choice of Triton kernels depends."""
    if not device.startswith("cuda"):
        return Machine("cpu", interpreted=interpreted())
    major, minor = torch.cuda.get_device_capability(device)
    return Machine("cuda", 10 * major + minor)


class TritonOps(TorchOps):
    """`Ops[torch.Tensor]` on a CUDA device, or on CPU tensors in Triton's interpreter. An op that
    has no Triton kernel is served by its reference on the same device. Raises LookupError if
    neither can run.

    `dtype` is that of activations: bfloat16 to serve. Dense weights are stored in it; norm weights
    and rope tables stay float32, and sums are computed in float32. The KV cache has the layout of
    `kernels.gpu_kv_cache`, step inputs are int32 on the device, `SamplingRows` may hold tensors
    (`sampling_operands`), and `StepInputs.work` is the result of `decode_work`. Then no wrapper
    reads the device or copies from the host, so that a step can be captured.
    """

    def __init__(
        self,
        device: str = "cuda",
        dtype: torch.dtype = torch.float32,
        names: frozenset[str] = frozenset({"triton", "reference"}),
        products: Literal["measured", "invariant"] = "measured",
        dense: Literal["stored", "float8"] = "stored",
    ) -> None:
        """`products`: "measured": the kernel that measured best for the number of rows;
        "invariant": one whose sums do not depend on the number of rows. `dense`: "float8": round
        dense weights of layers, except heads and routers, to 8-bit floats."""
        self._products = products
        self._dense = dense
        super().__init__(KernelRegistry(all_ops(), machine_of(device), names), device, dtype)

    def constant(self, array: Any) -> torch.Tensor:
        """See `TorchOps.constant`; floats stay float32, whatever the type of activations."""
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
        """See `Ops.pack_tied`; both share one memory."""
        head = self.pack_head(Linear((table,)))
        return PackedTable(head.parts[0], self.dtype), head
