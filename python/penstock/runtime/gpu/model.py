"""A model on a device: packed weights, KV cache and forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from penstock.config import EngineSettings
from penstock.kernels.communicator import SINGLE_RANK, Communicator
from penstock.kernels.gpu_kv_cache import CacheExtents, allocate_pool, caches_of
from penstock.kernels.kv_splits import FEW_ROWS, FEW_ROWS_SPLIT, smallest_split
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.decoder import Decoder, Progress
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.loader.model_loader import LoadedModel
from penstock.runtime.adapters import SlotAdapters, slot_adapters


class DeviceModel:
    """A model on a device, with its KV cache and its forward pass.

    `extents`: sizes of the KV cache.
    `max_rows`: most rows of a step.
    `max_model_len`: most tokens of a sequence.
    `communicator`: connects the ranks of a tensor-parallel model.
    `on_stage`: called after the allocation of the weights, of the KV cache, and of the memory of
    decode attention.

    Raises ModelError if the weights cannot be read.
    """

    def __init__(
        self,
        model: LoadedModel,
        ops: TorchOps,
        extents: CacheExtents,
        cache_dtype: torch.dtype,
        *,
        max_rows: int,
        max_model_len: int,
        progress: Progress | None = None,
        communicator: Communicator[torch.Tensor] = SINGLE_RANK,
        on_stage: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self._ops = ops
        self._decoder: Decoder[torch.Tensor] = Decoder(
            model.spec, model.weights, ops, max_model_len, progress, communicator
        )
        if torch.device(ops.device).type == "cuda":
            torch.cuda.empty_cache()  # free the packing buffers: the KV cache needs one large piece
        on_stage("weights")
        self.pool = allocate_pool(extents, cache_dtype, ops.device)
        self._caches = caches_of(self.pool)
        on_stage("cache")
        self.adapters: SlotAdapters | None = None
        self._work = None
        if ops.registry["attention"].name in ("cuda", "triton"):
            self._work = _DecodeAttentionPlans(
                model.spec,
                ops.device,
                max_rows,
                max_model_len,
                extents.block_size,
                few_rows=FEW_ROWS if ops.splits_by_rows else 0,
            )
        on_stage("kept")

    def make_slots(self, settings: EngineSettings, max_bytes: int) -> None:
        """Allocate the adapter slots that the settings request. `max_bytes`: most memory of all
        installed adapters together."""
        self.adapters = slot_adapters(self._decoder, self._ops, max_bytes, settings)

    @property
    def weight_bytes(self) -> int:
        return self._decoder.weight_bytes

    @property
    def work_bytes(self) -> int:
        """Memory of decode attention for the partial results of long contexts, in bytes."""
        return 0 if self._work is None else self._work.size_bytes

    def logits(self, inputs: StepInputs[torch.Tensor], *, one_token: bool) -> torch.Tensor:
        """Run the forward pass. Return the logits [S, V] float32 of the tokens
        `inputs.sample_rows`.

        `one_token`: every chunk has one token, and the inputs are at the same addresses as in the
        last such step.
        """
        if self._work is not None:
            inputs = replace(inputs, work=self._work.prepare(inputs, one_token))
        slots = None if self.adapters is None else self.adapters.slots
        return self._decoder.forward(self._ops, inputs, self._caches, slots).float()

    def close(self) -> None:
        self._caches = []
        self.adapters = self._work = None
        del self._decoder, self.pool


class _DecodeAttentionPlans:
    """The work plans of decode attention: one per attention window, computed once per step for all
    layers with this window, which have heads of the same sizes. Steps of up to `few_rows` rows
    split a context into smaller parts, to occupy the whole GPU."""

    def __init__(
        self,
        spec: DecoderSpec,
        device: str,
        max_rows: int,
        max_model_len: int,
        block_size: int,
        few_rows: int,
    ) -> None:
        # Imported here because only Triton needs it, never a CPU.
        from penstock.kernels.triton.paged_attention import decode_attention
        from penstock.kernels.triton.paged_attention import decode_work as attention_work

        self._allocate = attention_work.AttentionWork.allocate
        self._most_units = attention_work.most_units
        self._heads = {own.reach: spec.heads(own) for own in spec.layers if own.has_attention}
        self._tokens_of = decode_attention.decode_tokens
        self._device = device
        self._block_size = block_size
        self._few_rows = min(few_rows, max_rows)
        self._kept = self._keep(max_rows, max_model_len, smallest_split())
        self._few: dict[int, Any] = {}
        if self._few_rows:
            self._few = self._keep(self._few_rows, max_model_len, FEW_ROWS_SPLIT)

    def _keep(self, rows: int, max_model_len: int, chunk: int) -> dict[int, Any]:
        """Allocate the memory of work plans for steps of up to `rows` rows with one token each.
        Return one plan per attention window."""
        units = self._most_units(rows, max_model_len, chunk)
        return {
            window: self._allocate(rows, units, heads, window, self._device, split=chunk)
            for window, heads in self._heads.items()
        }

    @property
    def size_bytes(self) -> int:
        works = [*self._kept.values(), *self._few.values()]
        return sum(work.parts.nbytes + work.stats.nbytes for work in works)

    def prepare(self, inputs: StepInputs[torch.Tensor], one_token: bool) -> dict[int, Any]:
        works = self._of_decodes(inputs) if one_token else self._fresh(inputs)
        for work in works.values():
            work.plan(inputs)
        return works

    def _of_decodes(self, inputs: StepInputs[torch.Tensor]) -> dict[int, Any]:
        return self._few if len(inputs.context_lens) <= self._few_rows else self._kept

    def _fresh(self, inputs: StepInputs[torch.Tensor]) -> dict[int, Any]:
        """Allocate the memory of work plans for a step with prefill chunks, sized by its longest
        context. Return one plan per attention window."""
        rows, width = inputs.block_tables.shape
        tokens = len(inputs.tokens)
        units = self._most_units(rows, width * self._block_size)
        return {
            window: self._allocate(
                rows,
                units,
                heads,
                window,
                self._device,
                1 if tokens == rows else self._tokens_of(heads),
            )
            for window, heads in self._heads.items()
        }
