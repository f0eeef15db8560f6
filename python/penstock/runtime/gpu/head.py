"""The MTP head of a model on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.draft_head import HeadName
from penstock.models.decoder.predicting_head import PredictingHead
from penstock.runtime.backend import Ints
from penstock.runtime.gpu.attention_plans import AttentionPlans
from penstock.runtime.gpu.cuda_graphs import Capturer
from penstock.runtime.gpu.draft_steps import Carried, DraftSteps, Results, StepLimits
from penstock.runtime.gpu.kv_pools import KvPools
from penstock.runtime.gpu.memory_terms import HEAD_TOKENS


class DeviceHead:
    """An `MtpRunner` on a device, whose rows and hidden states are tensors there.

    `head`: the packed head.
    `pools`: its own KV cache, whose last block is for padding.
    `target_caches`: the KV caches of the target's layers.
    `work`: the work plans of its attention for steps of `HEAD_TOKENS` rows; None: the kernels need
        none.
    `width`: W of the target.
    """

    def __init__(
        self,
        head: PredictingHead[torch.Tensor],
        ops: TorchOps,
        pools: KvPools,
        target_caches: Sequence[LayerCache[torch.Tensor] | None],
        work: AttentionPlans | None,
        capturer: Capturer,
        limits: StepLimits,
        width: int,
    ) -> None:
        self.pools = pools
        self._head, self._ops, self._work = head, ops, work
        self._caches = [*target_caches, *pools.caches]
        device = torch.device(ops.device)
        states = torch.zeros(HEAD_TOKENS, width, dtype=ops.dtype, device=device)
        self.steps = DraftSteps(self._forward, capturer, limits, device, states)

    def run(
        self, inputs: StepInputs[Ints], rows: Any, index: Ints, head: HeadName = "whole"
    ) -> tuple[Any, Any]:
        """Run the head over T tokens; see `MtpRunner.run`. Call this on the stream of the steps.
        It has no draft head."""
        assert head == "whole"
        return self.steps.run(inputs, rows, index)

    def _forward(
        self, inputs: StepInputs[torch.Tensor], carried: Carried | None, one_token: bool
    ) -> Results:
        assert carried is not None
        if self._work is not None:
            inputs = replace(inputs, work=self._work.prepare(inputs, one_token))
        given = carried.rows, carried.index
        logits, states = self._head.forward(self._ops, inputs, *given, self._caches)
        return logits.float(), states
