"""The MTP head of a model on a device.

A pass over few tokens is one replay of a CUDA graph, in which each token is a row of its own, so
that one graph serves rows with any numbers of tokens. A pass over a prompt is launched kernel by
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.predicting_head import PredictingHead
from penstock.runtime.backend import Ints
from penstock.runtime.gpu.attention_plans import AttentionPlans
from penstock.runtime.gpu.cuda_graphs import Capturer, DecodeGraphs
from penstock.runtime.gpu.host_transfers import copy_to_device
from penstock.runtime.gpu.kv_pools import KvPools
from penstock.runtime.gpu.memory_terms import HEAD_TOKENS
from penstock.runtime.gpu.sent_inputs import SentInputs, filled_up, padding, single_tokens

Results = tuple[torch.Tensor, torch.Tensor]  # logits and hidden states


class DeviceHead:
    """An `MtpRunner` on a device, whose rows and hidden states are tensors there.

    `head`: the packed head.
    `pools`: its own KV cache, whose last block is for padding.
    `target_caches`: the KV caches of the target's layers.
    `work`: the work plans of its attention for steps of `HEAD_TOKENS` rows; None: the kernels need
        none.
    `width`: W of the target.
    `step_tokens`, `max_rows`, `max_blocks`: most tokens and rows of a step, and most KV blocks of a
        row.
    """

    def __init__(
        self,
        head: PredictingHead[torch.Tensor],
        ops: TorchOps,
        pools: KvPools,
        target_caches: Sequence[LayerCache[torch.Tensor] | None],
        work: AttentionPlans | None,
        capturer: Capturer,
        *,
        width: int,
        step_tokens: int,
        max_rows: int,
        max_blocks: int,
        num_blocks: int,
        block_size: int,
    ) -> None:
        self.pools = pools
        self._head, self._ops, self._work = head, ops, work
        self._caches = [*target_caches, *pools.caches]
        self._max_blocks = max_blocks
        self._scratch = num_blocks - 1, block_size
        device = torch.device(ops.device)
        self._sent = SentInputs(
            device, max(step_tokens, HEAD_TOKENS), max(max_rows, HEAD_TOKENS), max_blocks
        )
        self._states = torch.zeros(HEAD_TOKENS, width, dtype=ops.dtype, device=device)
        self._index = torch.arange(HEAD_TOKENS, dtype=torch.int32, device=device)
        self._inputs: StepInputs[torch.Tensor] | None = None
        self._graphs: DecodeGraphs[bool, Results] = DecodeGraphs(
            capturer, HEAD_TOKENS, self._compute, self._clear
        )

    @property
    def captured(self) -> list[tuple[int, bool]]:
        """The captured graphs: the number of tokens, and whether they compute logits."""
        return self._graphs.captured

    @property
    def size_bytes(self) -> int:
        """The bytes of the KV cache."""
        return self.pools.size_bytes

    def run(self, inputs: StepInputs[Ints], rows: Any, index: Ints) -> tuple[Any, Any]:
        """Run the head over T tokens; see `MtpRunner.run`. Call this on the stream of the steps."""
        count = len(inputs.tokens)
        if count > HEAD_TOKENS:
            sent, places = self._sent.send(inputs, index)
            return self._forward(sent, rows, places, one_token=False)
        samples = len(inputs.sample_rows) > 0
        size = self._graphs.size_for(count)
        self._graphs.make(size, samples)
        single = filled_up(single_tokens(inputs), size, *self._scratch)
        self._inputs, places = self._sent.send(single, index, self._max_blocks)
        torch.index_select(rows, 0, places, out=self._states[:count])
        logits, states = self._graphs.replay(size, samples)
        return self._sampled(logits, inputs.sample_rows, count), states[:count]

    def warm(self) -> None:
        """Capture the graphs that a decode step of one row needs."""
        for samples in (False, True):
            self._graphs.make(1, samples)

    def prepare(self) -> bool:
        """Capture one more graph. Return False if none is missing; see `DecodeGraphs.missing`."""
        missing = self._graphs.missing()
        if missing is not None:
            self._graphs.make(*missing)
        return missing is not None

    def _sampled(self, logits: torch.Tensor, places: Ints, count: int) -> torch.Tensor:
        """Return the rows `places` of the logits of `count` tokens."""
        if len(places) in (0, count):
            return logits[: len(places)]
        return logits.index_select(0, copy_to_device(places, logits.device))

    def _compute(self, size: int, samples: bool) -> Results:
        inputs = self._inputs
        assert inputs is not None
        if not samples:
            inputs = replace(inputs, sample_rows=inputs.sample_rows[:0])
        return self._forward(inputs, self._states[:size], self._index[:size], one_token=True)

    def _clear(self, size: int, samples: bool) -> None:
        """Fill the inputs of a pass with padding, before a capture."""
        step = padding(size, *self._scratch)
        self._inputs, _ = self._sent.send(step, np.zeros(size, np.int32), self._max_blocks)

    def _forward(
        self,
        inputs: StepInputs[torch.Tensor],
        rows: torch.Tensor,
        index: torch.Tensor,
        *,
        one_token: bool,
    ) -> Results:
        if self._work is not None:
            inputs = replace(inputs, work=self._work.prepare(inputs, one_token))
        logits, states = self._head.forward(self._ops, inputs, rows, index, self._caches)
        return logits.float(), states
