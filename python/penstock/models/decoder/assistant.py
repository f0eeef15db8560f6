"""The forward pass of an assistant (see `assistant_spec`), written with the ops of a kernel
backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.decoder.assistant_weights import AssistantWeights
from penstock.models.decoder.decoder import Decoder
from penstock.models.decoder.draft_head import HeadName, Ints, pack_draft_head
from penstock.models.decoder.mixer import CacheSize
from penstock.quant.weight_slices import linear_bytes

Tensor = TypeVar("Tensor")


class Assistant(Generic[Tensor]):
    """An assistant whose weights are packed for one kernel backend. See `PredictingHead`."""

    caches: tuple[CacheSize | None, ...] = ()

    def __init__(
        self,
        target: Decoder[Tensor],
        weights: AssistantWeights,
        ops: Ops[Tensor],
        draft_ids: Ints | None = None,
    ) -> None:
        """Pack the weights. `target`: the decoder for which the assistant predicts. Its embedding
        is used, and its RoPE tables, because the queries meet keys that these have rotated.
        `draft_ids`: see `Decoder`; None with centroids."""
        self._embedding = target.shared.embedding
        self._scale = target.spec.embedding_scale
        self._has_head = weights.spec.centroids is None
        head = draft_head = None
        linears = [*weights.before(), weights.after()]
        if self._has_head:
            own = weights.head()
            head, draft_head = ops.pack_head(own), pack_draft_head(own, draft_ids, ops)
            linears.append(own)
        shared = replace(target.shared, embedding=None, head=head, draft_head=draft_head)
        self._decoder = Decoder(weights.spec.decoder, weights.decoder, ops, shared=shared)
        self._of_embedding, self._of_hidden, self._after = map(ops.pack_linear, linears[:3])
        self.weight_bytes = self._decoder.weight_bytes + sum(map(linear_bytes, linears))

    def forward(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        rows: Tensor,
        index: Tensor,
        caches: Sequence[LayerCache[Tensor] | None],
        head: HeadName = "whole",
    ) -> tuple[Tensor, Tensor]:
        """Run the assistant over T tokens; see `PredictingHead.forward`. With centroids, the first
        result is the final hidden states of the sampled tokens, which `CentroidHead` reads.

        Keys of the tokens themselves are not stored: `context_lens` ends before them, and
        `positions` are theirs.
        """
        inputs = replace(inputs, adapters=None, sampled_adapters=None, media=None, states=None)
        embedded = ops.embedding(self._embedding, inputs.tokens, self._scale)
        hidden = ops.replace_rows(embedded, rows, index)
        embedded = ops.linear(embedded, self._of_embedding)
        start = ops.add(embedded, ops.linear(hidden, self._of_hidden))
        if self._has_head:
            first, states = self._decoder.forward_all(ops, inputs, caches, start=start, head=head)
        else:
            states = self._decoder.hidden(ops, inputs, caches, None, start=start)
            first = ops.gather_rows(states, inputs.sample_rows)
        return first, ops.linear(states, self._after)
