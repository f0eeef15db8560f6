"""The MTP head or the assistant of a model on the native CPU backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.kernels.native import NativeOps, PlanOps, plan_arguments
from penstock.kernels.step_inputs import LayerCache, MediaRows, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.models.decoder.draft_head import HeadName
from penstock.models.decoder.predicting_head import (
    HeadWeights,
    PredictingHead,
    pack_predicting_head,
)
from penstock.runtime.backend import Floats, Ints
from penstock.runtime.cpu.kv_cache import KvCache
from penstock.runtime.cpu.token_kinds import all_alike
from penstock.runtime.memory import MemoryPlan


class NativeMtp:
    """An `MtpRunner` with native kernels. `memory`: the sizes of the target's backend."""

    def __init__(
        self,
        target: Decoder[Any],
        target_caches: Sequence[LayerCache[Any] | None],
        weights: HeadWeights,
        ops: NativeOps,
        memory: MemoryPlan,
        draft_ids: Ints | None = None,
    ) -> None:
        """Pack the weights. `draft_ids`: the tokens of the draft head, None without one. Raises
        ModelError if the weights cannot be read."""
        self._ops = ops
        self._head: PredictingHead[Any] = pack_predicting_head(target, weights, ops, draft_ids)
        self._heads: tuple[HeadName, ...] = ("whole",) if draft_ids is None else ("whole", "draft")
        self._target_caches = target_caches
        self._kv_cache = KvCache(replace(memory.cache, layers=self._head.caches))
        # The plan gathers hidden states from here, as other plans do with encoded media.
        self._rows: Any = np.zeros((memory.step_tokens, target.spec.hidden_size), np.float32)
        self._memory = memory
        self._plans: dict[HeadName, Any] = {}

    def record(self, target_plan: Any) -> None:
        """Record a plan for each language-model head, which use the memory of `target_plan` if that
        is large enough."""
        shared = target_plan
        for head in self._heads:
            recorder, logits = self._record(head)
            plan = recorder.finish(logits)
            if plan.arena_bytes <= shared.arena_bytes:
                plan = recorder.finish(logits, shared)
            else:
                shared = plan
            self._plans[head] = plan

    def _record(self, head: HeadName) -> tuple[PlanOps, Any]:
        """Return the recorder of a plan and its output."""
        memory = self._memory
        max_rows = min(memory.sizes.max_num_seqs, memory.step_tokens)
        max_blocks = -(-memory.max_model_len // memory.cache.block_size)
        recorder = self._ops.recorder(
            memory.step_tokens,
            max_rows,
            max_rows,
            max_blocks,
            media=MediaRows(np.empty(0, np.int32), self._rows),
        )
        media = recorder.inputs.media
        assert media is not None
        caches = [*self._target_caches, *self._kv_cache.caches]
        logits, hidden = self._head.forward(
            recorder, recorder.inputs, media.rows, media.index, caches, head
        )
        recorder.keep(hidden)
        return recorder, logits

    def run(
        self, inputs: StepInputs[Ints], rows: Floats, index: Ints, head: HeadName = "whole"
    ) -> tuple[Floats, Floats]:
        """Run the head; see `MtpRunner.run`. The logits of the target are then undefined."""
        self._rows[: len(rows)] = rows
        given = all_alike(replace(inputs, media=MediaRows(index, self._rows)))
        plan = self._plans[head]
        logits: Floats = plan.run(*plan_arguments(given))
        hidden: Floats = plan.kept(0)
        return logits, hidden

    def prepare(self, used_blocks: int) -> bool:
        """Allocate memory of the KV cache ahead of its use; see `Backend.prepare`."""
        return self._kv_cache.prepare(used_blocks)
