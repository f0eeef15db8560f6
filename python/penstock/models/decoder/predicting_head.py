"""The interface of heads that predict further tokens from the hidden states of a target: the MTP
head of a model, and assistants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.decoder.assistant import Assistant
from penstock.models.decoder.assistant_weights import AssistantWeights
from penstock.models.decoder.decoder import Decoder
from penstock.models.decoder.draft_head import HeadName, Ints
from penstock.models.decoder.mixer import CacheSize
from penstock.models.decoder.mtp import MtpHead
from penstock.models.decoder.mtp_weights import MtpWeights

Tensor = TypeVar("Tensor")

HeadWeights: TypeAlias = MtpWeights | AssistantWeights


class PredictingHead(Protocol[Tensor]):
    """A packed head. `caches`: the sizes of its own KV caches. `weight_bytes`: the bytes of the
    source arrays, without those of the target."""

    caches: tuple[CacheSize | None, ...]
    weight_bytes: int

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
        ones, and hidden states [T, W] that stand in for those of the target.

        - `inputs`: `tokens` has the token after the one whose hidden state is read.
        - `rows`, `index`: the hidden state of the target (or of the head, if it predicts further
          tokens) for each token is rows[index[t]]: [M, W], [T].
        - `caches`: those of the target's layers, followed by those of the head.
        - `head`: see `Decoder.forward`.
        """


def pack_predicting_head(
    target: Decoder[Tensor],
    weights: HeadWeights,
    ops: Ops[Tensor],
    draft_ids: Ints | None = None,
) -> PredictingHead[Tensor]:
    """Return the head for `target`. `draft_ids`: see `Decoder`. Raises ModelError if the weights
    cannot be read."""
    if isinstance(weights, AssistantWeights):
        return Assistant(target, weights, ops, draft_ids)
    return MtpHead(target, weights, ops, draft_ids)
