"""Triton implementations of the ops, and `TritonOps` over them.

Nothing outside this package imports triton. Wrappers check and allocate; kernels only compute.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch

from penstock.kernels.arrays import tensor_of
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import KernelRegistry, Machine
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton import activation, embedding, gather, layer_norm, lora, norm, pooling
from penstock.kernels.triton import persistent_batch as rows
from penstock.kernels.triton.compile.launch import interpreted
from penstock.kernels.triton.matmul import linear
from penstock.kernels.triton.moe import experts
from penstock.kernels.triton.moe import packed_experts as experts_packed
from penstock.kernels.triton.paged_attention import attention, rope_cache
from penstock.kernels.triton.sampler import adjust, adjust_rows, logprobs, sampling
from penstock.kernels.weights import Experts, Linear, Matrix

__all__ = [
    "TritonOps",
    "activation",
    "adjust",
    "adjust_rows",
    "attention",
    "embedding",
    "experts",
    "gather",
    "layer_norm",
    "linear",
    "logprobs",
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
    can run.

    `dtype` is that of activations: bfloat16 to serve. Dense weights are held in it then; norm
    weights and rope tables stay float32, sums are made in float32. The cache lies as
    `kernels.gpu_kv_cache` says, step inputs are int32 on the device, `SamplingRows` may hold
    tensors
    (`sampling_operands`), `StepInputs.work` what `attention_work` prepared. No wrapper reads the
    device or copies from the host then, so a step can be captured.
    """

    def __init__(
        self,
        device: str = "cuda",
        dtype: torch.dtype = torch.float32,
        names: frozenset[str] = frozenset({"triton", "reference"}),
        products: Literal["measured", "invariant"] = "measured",
        dense: Literal["stored", "float8"] = "stored",
    ) -> None:
        """`products`: by the kernel that measured best for so many rows, or by one whose sums never
        depend on their number. `dense`: whether dense weights of layers stay, or are rounded to
        8-bit floats; heads and routers stay."""
        self._products = products
        self._dense = dense
        super().__init__(KernelRegistry(all_ops(), machine_of(device), names), device, dtype)

    def constant(self, array: Any) -> torch.Tensor:
        """See `TorchOps.constant`: floats stay float32, whatever the type of activations."""
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
        invariant = self._products == "invariant"
        return replace(super().pack_linear(weight), invariant=invariant)

    def pack_experts(self, weights: Experts) -> Any:
        """See `Ops.pack_experts`."""
        packed = super().pack_experts(weights)
        if self._dense == "float8":
            packed = experts_packed.rounded_to_float8(packed)
        return replace(packed, invariant=self._products == "invariant")

    def pack_tied(self, table: Matrix) -> tuple[Any, Any]:
        """See `Ops.pack_tied`: one memory."""
        head = self.pack_head(Linear((table,)))
        return embedding.PackedTable(head.parts[0], self.dtype), head
