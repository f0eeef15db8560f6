"""A mixture of experts beside the dense feed-forward of a layer (Gemma 4): both read the residual
stream, each with a norm of its own, and both results are normalized and added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.expert_weights import BESIDE_NORMS
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.feed_forward import ExpertsFeedForward
from penstock.models.decoder.layer_step import LayerStep
from penstock.models.decoder.layer_weights import LayerWeights
from penstock.models.decoder.norm import Norm, pack_norm
from penstock.models.decoder.residual_stream import ResidualStream
from penstock.models.decoder.spec import DecoderSpec

Tensor = TypeVar("Tensor")


def layer_shapes(spec: DecoderSpec) -> Mapping[str, Shape]:
    """Return the shape of each norm of a layer, by role."""
    return dict.fromkeys(BESIDE_NORMS, (spec.hidden_size,))


class ExpertsBeside(Generic[Tensor]):
    """The packed experts of a layer and the norms around both blocks."""

    def __init__(
        self, spec: DecoderSpec, experts: ExpertsSpec, weights: LayerWeights, ops: Ops[Tensor]
    ) -> None:
        norms = weights.beside
        assert norms is not None
        self._dense_post: Norm[Tensor] = pack_norm(spec, norms.dense_post, ops)
        self._norm: Norm[Tensor] = pack_norm(spec, norms.experts, ops)
        self._post: Norm[Tensor] = pack_norm(spec, norms.experts_post, ops)
        self._router_norm: Norm[Tensor] = pack_norm(spec, norms.router, ops)
        self._experts = ExpertsFeedForward(experts, weights, ops)

    def __call__(
        self,
        step: LayerStep[Tensor],
        dense: Tensor,
        stream: ResidualStream[Tensor],
        reduced: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Return the sum of both results: [T, W] -> [T, W].

        - `dense`: the result of the dense feed-forward.
        - `stream`: the residual stream, which both blocks read.
        - `reduced`: adds the results of all tensor parallel ranks.
        """
        inputs = stream.norm(self._norm), stream.norm(self._router_norm)
        routed = reduced(self._experts.run(step, *inputs))
        ops = step.ops
        return ops.add(self._dense_post.of(ops, dense), self._post.of(ops, routed))
