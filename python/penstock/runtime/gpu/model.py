"""A model on a device: its packed weights, its cache, and the logits of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from penstock.config import EngineSettings
from penstock.kernels.communicator import SINGLE_RANK, Communicator
from penstock.kernels.gpu_kv_cache import CacheExtents, allocate_pool, caches_of
from penstock.kernels.kv_splits import FEW_ROWS, FEW_ROWS_SPLIT, smallest_split
from penstock.kernels.ops_interface import StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.decoder import Decoder, Progress
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.loader.model_loader import LoadedModel
from penstock.runtime.adapters import SlotAdapters, slot_adapters


class DeviceModel:
    """`extents`: of the cache, whose memory is `pool`. `max_rows` sequences of up to
    `max_model_len` tokens. `ranks`: those that have the other shards of the model. `reached`: is
    told when weights, cache and what attention keeps are there. Raises ModelError where weights
    cannot be read."""

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
        ranks: Communicator[torch.Tensor] = SINGLE_RANK,
        reached: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self._ops = ops
        self._decoder: Decoder[torch.Tensor] = Decoder(
            model.spec, model.weights, ops, max_model_len, progress, ranks
        )
        if torch.device(ops.device).type == "cuda":
            torch.cuda.empty_cache()  # what packing left over: the cache is one large piece
        reached("weights")
        self.pool = allocate_pool(extents, cache_dtype, ops.device)
        self._caches = caches_of(self.pool)
        reached("cache")
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
        reached("kept")

    def make_slots(self, settings: EngineSettings, max_bytes: int) -> None:
        """Slots for what adapters the settings have, of up to `max_bytes`."""
        self.adapters = slot_adapters(self._decoder, self._ops, max_bytes, settings)

    @property
    def weight_bytes(self) -> int:
        return self._decoder.weight_bytes

    @property
    def work_bytes(self) -> int:
        """Memory that decode attention keeps for the parts of long contexts."""
        return 0 if self._work is None else self._work.size_bytes

    def logits(self, inputs: StepInputs[torch.Tensor], *, one_token: bool) -> torch.Tensor:
        """[S, V] float32 at the places `sample_rows`. `one_token`: every chunk has just one, and
        memory is where it was the last time."""
        if self._work is not None:
            inputs = replace(inputs, work=self._work.prepare(inputs, one_token))
        slots = None if self.adapters is None else self.adapters.slots
        return self._decoder.forward(self._ops, inputs, self._caches, slots).float()

    def close(self) -> None:
        self._caches = []
        self.adapters = self._work = None
        del self._decoder, self.pool


class _DecodeAttentionPlans:
    """Plans of decode attention, made once for all layers of a step, for each window that layers
    have. Steps of up to `few_rows` rows cut contexts into smaller chunks, to use the whole GPU."""

    def __init__(
        self,
        spec: DecoderSpec,
        device: str,
        max_rows: int,
        max_model_len: int,
        block_size: int,
        few_rows: int,
    ) -> None:
        # only where Triton serves: a CPU has no need of it
        from penstock.kernels.triton.paged_attention import decode_attention
        from penstock.kernels.triton.paged_attention import decode_work as attention_work

        self._allocate = attention_work.AttentionWork.allocate
        self._most_units = attention_work.most_units
        self._heads = (spec.heads, spec.kv_heads, spec.head_dim)
        self._short = decode_attention.decode_tokens(self._heads)
        self._device = device
        self._block_size = block_size
        self._windows = sorted({layer.window for layer in spec.layers})
        self._few_rows = min(few_rows, max_rows)
        self._kept = self._keep(max_rows, max_model_len, smallest_split())
        self._few: dict[int, Any] = {}
        if self._few_rows:
            self._few = self._keep(self._few_rows, max_model_len, FEW_ROWS_SPLIT)

    def _keep(self, rows: int, max_model_len: int, chunk: int) -> dict[int, Any]:
        """Memory for steps of up to `rows` rows with one token each, by window."""
        units = self._most_units(rows, max_model_len, chunk)
        return {
            window: self._allocate(rows, units, self._heads, window, self._device, split=chunk)
            for window in self._windows
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
        """For a step of any chunks, as large as its own longest context asks for."""
        rows, width = inputs.block_tables.shape
        tokens = len(inputs.tokens)
        short = 1 if tokens == rows else self._short
        units = self._most_units(rows, width * self._block_size)
        return {
            window: self._allocate(rows, units, self._heads, window, self._device, short)
            for window in self._windows
        }
