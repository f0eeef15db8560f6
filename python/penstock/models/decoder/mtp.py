"""The forward pass of an MTP head (see `mtp_spec`), written with the ops of a kernel backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.models.decoder.draft_head import HeadName, Ints, pack_draft_head
from penstock.models.decoder.mtp_layer import mtp_decoder
from penstock.models.decoder.mtp_weights import MtpWeights
from penstock.models.decoder.norm import pack_norm
from penstock.quant.weight_slices import linear_bytes, size_bytes

Tensor = TypeVar("Tensor")


class MtpHead(Generic[Tensor]):
    """An MTP head whose weights are packed for one kernel backend. `weight_bytes`: the bytes of the
    source arrays, without those of the target."""

    def __init__(
        self,
        target: Decoder[Tensor],
        weights: MtpWeights,
        ops: Ops[Tensor],
        draft_ids: Ints | None = None,
    ) -> None:
        """Pack the weights. `target`: the decoder for which the head predicts, whose embedding,
        language-model head and RoPE tables it uses unless it has its own. `draft_ids`: see
        `Decoder`; without a language-model head of its own, it uses the draft head of `target`."""
        shared = target.shared
        embedding, head = weights.embedding(), weights.head()
        own = 0
        if embedding is not None:
            shared = replace(shared, embedding=ops.pack_embedding(embedding))
            own += size_bytes(embedding)
        if head is not None:
            draft_head = pack_draft_head(head, draft_ids, ops)
            shared = replace(shared, head=ops.pack_head(head), draft_head=draft_head)
            own += linear_bytes(head)
        spec = mtp_decoder(target.spec)
        self._layer: Decoder[Tensor] = Decoder(spec, weights.layer, ops, shared=shared)
        projections = weights.projections()
        self._of_embedding, self._of_hidden = map(ops.pack_linear, projections)
        self._embedding_norm, self._hidden_norm = (
            pack_norm(spec, norm, ops) for norm in weights.norms()
        )
        self.caches = spec.caches
        self.weight_bytes = self._layer.weight_bytes + own + sum(map(linear_bytes, projections))

    def forward(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        rows: Tensor,
        index: Tensor,
        caches: Sequence[LayerCache[Tensor] | None],
        head: HeadName = "whole",
    ) -> tuple[Tensor, Tensor]:
        """Run the head over T tokens. Return the logits [S, V] of the tokens after the sampled
        ones, and the final hidden states [T, W] of the head.

        - `inputs`: `tokens` has the token after each position, all others are those of the
          position itself. Adapters, media and recurrent states do not count.
        - `rows`, `index`: the hidden state of the target (or of the head, if it predicts further
          tokens) at each position is rows[index[t]]: [M, W], [T].
        - `caches`: the last one has the size in `caches` of this object.
        - `head`: see `Decoder.forward`.
        """
        inputs = replace(inputs, adapters=None, sampled_adapters=None, media=None, states=None)
        embedded = self._layer.embed(ops, inputs)
        hidden = ops.replace_rows(embedded, rows, index)
        embedded = ops.linear(self._embedding_norm.of(ops, embedded), self._of_embedding)
        hidden = ops.linear(self._hidden_norm.of(ops, hidden), self._of_hidden)
        start = ops.add(embedded, hidden)
        return self._layer.forward_all(ops, inputs, caches[-1:], start=start, head=head)
