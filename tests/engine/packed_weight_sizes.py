"""The sizes of a model's weights as packed for a GPU, packed on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch

from penstock.kernels.cases.random_inputs import map_tensors
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import KernelRegistry, Machine
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton import TritonOps
from penstock.kernels.weights import Experts, Linear
from penstock.models.decoder.layer_weights import LayerWeights, Weights


class PackingOps(TritonOps):
    """Packs on the CPU as for a GPU."""

    def __init__(self, dense: Literal["stored", "float8"] = "stored") -> None:
        self._products, self._dense = "measured", dense
        table = KernelRegistry(all_ops(), Machine("cuda", 90), frozenset({"triton", "reference"}))
        TorchOps.__init__(self, table, "cpu", torch.bfloat16)


def packed_ends(weights: Weights, ops: TorchOps) -> tuple[Any, ...]:
    """Return embedding and head, which may share memory, and the norm between them."""
    head, table, norm = weights.head(), weights.embedding(), ops.constant(weights.final_norm())
    if head is None:
        return *ops.pack_tied(table), norm
    return ops.pack_embedding(table), ops.pack_head(head), norm


def packed_layer(layer: LayerWeights, ops: TorchOps) -> Iterator[Any]:
    """Return the matrices and the vectors of a layer."""
    for name in LayerWeights.__dataclass_fields__:
        part = getattr(layer, name)
        if isinstance(part, Linear):
            yield ops.pack_head(part) if name == "router" else ops.pack_linear(part)
        elif isinstance(part, Experts):
            yield ops.pack_experts(part)
        elif isinstance(part, np.ndarray):
            yield ops.constant(part)


def tensors_of(*packed: Any) -> list[torch.Tensor]:
    """Return each tensor of packed weights once, in order."""
    tensors: dict[int, torch.Tensor] = {}
    map_tensors(packed, lambda tensor: tensors.setdefault(id(tensor), tensor))
    return list(tensors.values())


def held_bytes(weights: Weights, ops: TorchOps) -> int:
    """Return the bytes of all tensors of a model's packed weights."""
    layers = [tuple(packed_layer(layer, ops)) for layer in weights.layers()]
    return sum(tensor.nbytes for tensor in tensors_of(packed_ends(weights, ops), *layers))
