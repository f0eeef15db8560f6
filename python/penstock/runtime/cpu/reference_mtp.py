"""The MTP head or the assistant of a model on the reference backend. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from penstock.kernels.numpy_bridge import as_tensors
from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.models.decoder.draft_head import HeadName
from penstock.models.decoder.predicting_head import (
    HeadWeights,
    PredictingHead,
    pack_predicting_head,
)
from penstock.runtime.backend import Floats, Ints
from penstock.runtime.cache_shape import CacheShape


def torch_caches(shape: CacheShape) -> list[LayerCache[torch.Tensor] | None]:
    """Return the zeroed KV cache of each layer, None for a layer without one."""
    dtype = {1: torch.int8, 2: torch.float16, 4: torch.float32}[shape.item_bytes]
    return [
        None
        if size is None
        else LayerCache(
            torch.zeros(shape.keys_shape(size), dtype=dtype),
            torch.zeros(shape.values_shape(size), dtype=dtype),
        )
        for size in shape.layers
    ]


class ReferenceMtp:
    """An `MtpRunner` with the reference ops. `cache`: the shape of the target's KV cache."""

    def __init__(
        self,
        target: Decoder[torch.Tensor],
        target_caches: Sequence[LayerCache[torch.Tensor] | None],
        weights: HeadWeights,
        ops: Ops[torch.Tensor],
        cache: CacheShape,
        draft_ids: Ints | None = None,
    ) -> None:
        """Pack the weights. `draft_ids`: the tokens of the draft head, None without one. Raises
        ModelError if the weights cannot be read."""
        self._ops = ops
        self._head: PredictingHead[torch.Tensor] = pack_predicting_head(
            target, weights, ops, draft_ids
        )
        self._target_caches = target_caches
        self._caches = torch_caches(replace(cache, layers=self._head.caches))

    def run(
        self, inputs: StepInputs[Ints], rows: Floats, index: Ints, head: HeadName = "whole"
    ) -> tuple[Floats, Floats]:
        """Run the head; see `MtpRunner.run`."""
        tensors: StepInputs[torch.Tensor] = as_tensors(inputs)
        states, indices = torch.from_numpy(rows), torch.from_numpy(index)
        with torch.inference_mode():
            caches = [*self._target_caches, *self._caches]
            found = self._head.forward(self._ops, tensors, states, indices, caches, head)
        logits, hidden = (result.numpy() for result in found)
        return logits, hidden
