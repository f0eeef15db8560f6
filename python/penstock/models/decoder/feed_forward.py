"""The feed-forward block of a decoder layer: dense, or a mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.models.decoder.layer_step import LayerStep
from penstock.models.decoder.lora_targets import DOWN, GATE_UP
from penstock.models.decoder.spec import DecoderSpec, ExpertsSpec, LayerSpec

if TYPE_CHECKING:
    from penstock.models.decoder.weights import LayerWeights

Tensor = TypeVar("Tensor")


class FeedForward(Protocol[Tensor]):
    """A packed feed-forward block."""

    def __call__(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the block: [T, W] -> [T, W]."""
        ...


class DenseFeedForward(Generic[Tensor]):
    """A gated feed-forward: down(act(gate(x)) * up(x))."""

    def __init__(
        self,
        activation: Literal["silu", "gelu_tanh"],
        weights: LayerWeights,
        ops: Ops[Tensor],
    ) -> None:
        assert weights.gate_up is not None and weights.down is not None
        self._activation = activation
        self._gate_up = ops.pack_linear(weights.gate_up)
        self._down = ops.pack_linear(weights.down)

    def __call__(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the block: [T, W] -> [T, W]."""
        gate_up = step.linear(x, self._gate_up, GATE_UP)
        if self._activation == "gelu_tanh":
            inner = step.ops.gelu_tanh_mul(gate_up)
        else:
            inner = step.ops.silu_mul(gate_up)
        return step.linear(inner, self._down, DOWN)


class ExpertsFeedForward(Generic[Tensor]):
    """A mixture of experts."""

    def __init__(self, spec: ExpertsSpec, weights: LayerWeights, ops: Ops[Tensor]) -> None:
        assert weights.router is not None and weights.experts is not None
        self._spec = spec
        self._router = ops.pack_head(weights.router)
        self._experts = ops.pack_experts(weights.experts)

    def __call__(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the block: [T, W] -> [T, W]."""
        ops, spec = step.ops, self._spec
        logits = ops.linear(x, self._router)
        chosen, shares = ops.route_experts(logits, spec.routing)
        return ops.experts(x, chosen, shares, self._experts)


def pack_feed_forward(
    spec: DecoderSpec, layer: LayerSpec, weights: LayerWeights, ops: Ops[Tensor]
) -> FeedForward[Tensor]:
    """Return the packed feed-forward block of a layer."""
    if layer.experts is not None:
        return ExpertsFeedForward(layer.experts, weights, ops)
    return DenseFeedForward(spec.activation, weights, ops)
