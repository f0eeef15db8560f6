"""`Ops` over torch tensors, computed by the implementations that a `KernelRegistry` chose."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from penstock.kernels.arrays import tensor_of
from penstock.kernels.cases.random_inputs import map_tensors
from penstock.kernels.gpu_kv_cache import CacheExtents, allocate_caches
from penstock.kernels.layer_graphs import LayerGraphs
from penstock.kernels.lora_slots import SlotSizes
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import KernelRegistry
from penstock.kernels.step_inputs import CacheDtype, LayerCache
from penstock.kernels.weights import Experts, Linear, Matrix


class TorchOps:
    """`Ops[torch.Tensor]` on one device, with a method for every op of `all_ops`.

    These modules specify the ops: `kernels.ops_interface`, `kernels.sampler_inputs` (sample,
    adjust_logits, top_logprobs) and `kernels.persistent_batch` (update_rows, prepare_step,
    adjust_rows, append_tokens).

    `registry`: the chosen implementations.
    `dtype`: type of activations and constants, for example float32, or float64 for the truth of the
        tests.
    """

    splits_by_rows = False
    """Whether decode attention may choose the split size by the number of rows of a step, as matrix
    products choose their kernels. The last bits of a row then depend on the number of rows."""

    layer_graphs: LayerGraphs | None = None

    def __init__(
        self, registry: KernelRegistry, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.registry = registry
        self.device = device
        self.dtype = dtype

    if TYPE_CHECKING:

        def __getattr__(self, op: str) -> Callable[..., Any]: ...

    def pack_linear(self, weight: Linear) -> Any:
        return self._pack("linear", weight)

    def pack_head(self, weight: Linear) -> Any:
        return self.pack_linear(weight)

    def pack_experts(self, weights: Experts) -> Any:
        return self._pack("experts", weights)

    def pack_head_linear(self, weight: Linear) -> Any:
        return self._pack("head_linear", weight)

    def pack_embedding(self, table: Matrix) -> Any:
        return self._pack("embedding", table)

    def pack_tied(self, table: Matrix) -> tuple[Any, Any]:
        return self.pack_embedding(table), self.pack_head(Linear((table,)))

    def adapter_slots(self, sizes: SlotSizes) -> Any:
        return self._pack("lora", sizes)

    def packed_bytes(self, matrix: Matrix) -> int:
        """Pack a matrix as a linear layer on the device, and return its size there in bytes."""
        sizes: list[int] = []
        map_tensors(self.pack_head(Linear((matrix,))), lambda tensor: sizes.append(tensor.nbytes))
        return sum(sizes)

    def _pack(self, name: str, weight: Any) -> Any:
        pack = self.registry[name].pack
        assert pack is not None, f"{self.registry[name].name} {name} has no packing"
        return pack(weight, self.device, self.dtype)

    def constant(self, array: Any) -> torch.Tensor:
        """Return a numpy array as a tensor on the device. Integers keep their type; floats become
        `dtype`."""
        tensor = tensor_of(array).to(self.device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def new_cache(
        self, shape: tuple[int, int, int, int], dtype: CacheDtype
    ) -> LayerCache[torch.Tensor]:
        """See `Ops.new_cache`. The cache has the layout of `kernels.gpu_kv_cache`."""
        blocks, heads, dim, block_size = shape
        extents = CacheExtents(1, blocks, heads, block_size, dim)
        return allocate_caches(extents, self.dtype, self.device)[0]


def _method(name: str) -> Callable[..., Any]:
    def op(self: TorchOps, *operands: Any) -> Any:
        return self.registry[name].call(*operands)

    op.__name__, op.__qualname__ = name, f"TorchOps.{name}"
    return op


for _op in all_ops():
    _forward = _method(_op.name)
    _forward.__doc__ = f"{_op.signature}. {_op.reference.__doc__ or ''}"
    setattr(TorchOps, _op.name, _forward)
