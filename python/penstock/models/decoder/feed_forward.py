"""The feed-forward block of a decoder layer: dense, or a mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.models.decoder.activations import gated_activation, plain_activation
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.layer_step import LayerStep
from penstock.models.decoder.spec import DecoderSpec, LayerSpec

if TYPE_CHECKING:
    from penstock.models.decoder.expert_weights import SharedWeights
    from penstock.models.decoder.layer_weights import LayerWeights

Tensor = TypeVar("Tensor")


class FeedForward(Protocol[Tensor]):
    """A packed feed-forward block."""

    def __call__(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the block: [T, W] -> [T, W]."""
        ...


class DenseFeedForward(Generic[Tensor]):
    """A feed-forward with or without a gate, as `DecoderSpec.gated` says. `deviations`: see
    `LayerSpec.gate_deviations`."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: LayerWeights,
        ops: Ops[Tensor],
        deviations: float | None = None,
    ) -> None:
        assert weights.gate_up is not None and weights.down is not None
        self._gated = spec.gated
        self._activation = spec.activation
        self._deviations = deviations
        self._gate_up = ops.pack_linear(weights.gate_up)
        self._down = ops.pack_linear(weights.down)

    def __call__(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the block: [T, W] -> [T, W]."""
        inner = self._activate(step.ops, step.linear(x, self._gate_up, "gate_up"))
        return step.linear(inner, self._down, "down")

    def _activate(self, ops: Ops[Tensor], opened: Tensor) -> Tensor:
        if self._deviations is not None:
            return ops.sparse_gelu_tanh_mul(opened, self._deviations)
        activate = gated_activation if self._gated else plain_activation
        return activate(ops, self._activation, opened)


class SharedFeedForward(Generic[Tensor]):
    """The shared experts of a mixture: a feed-forward of all tokens, whose result may be scaled by
    the sigmoid of a linear layer."""

    def __init__(self, spec: ExpertsSpec, weights: SharedWeights, ops: Ops[Tensor]) -> None:
        self._spec = spec
        self._gate_up = ops.pack_linear(weights.gate_up)
        self._down = ops.pack_linear(weights.down)
        self._router: Any = None
        if weights.router is not None:
            self._router = ops.pack_linear(weights.router)

    def __call__(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the shared experts: [T, W] -> [T, W]."""
        ops, linear = step.ops, step.linear
        activate = gated_activation if self._spec.gated else plain_activation
        inner = activate(ops, self._spec.activation, linear(x, self._gate_up, "shared_gate_up"))
        y = linear(inner, self._down, "shared_down")
        if self._router is None:
            return y
        return ops.sigmoid_mul(y, linear(x, self._router, "shared_router"))


class ExpertsFeedForward(Generic[Tensor]):
    """A mixture of experts, beside shared experts if it has them."""

    def __init__(self, spec: ExpertsSpec, weights: LayerWeights, ops: Ops[Tensor]) -> None:
        assert weights.router is not None and weights.experts is not None
        self._spec = spec
        self._router = ops.pack_head(weights.router)
        self._router_bias: Tensor | None = None
        if weights.router_bias is not None:
            self._router_bias = ops.constant(weights.router_bias)
        self._expert_scale: Tensor | None = None
        if weights.expert_scale is not None:
            self._expert_scale = ops.constant(weights.expert_scale)
        self._experts = ops.pack_experts(weights.experts)
        self._shared: SharedFeedForward[Tensor] | None = None
        if weights.shared is not None:
            self._shared = SharedFeedForward(spec, weights.shared, ops)

    def __call__(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the block: [T, W] -> [T, W]."""
        return self.run(step, x, x)

    def run(self, step: LayerStep[Tensor], x: Tensor, routed: Tensor) -> Tensor:
        """Compute the block: [T, W] -> [T, W]. `routed`: [T, W], the input of the router."""
        ops = step.ops
        logits = ops.linear(routed, self._router)
        chosen, shares = ops.route_experts(
            logits, self._spec.routing, self._router_bias, self._expert_scale
        )
        y = ops.experts(x, chosen, shares, self._experts)
        return y if self._shared is None else ops.add(y, self._shared(step, x))


def pack_feed_forward(
    spec: DecoderSpec, layer: LayerSpec, weights: LayerWeights, ops: Ops[Tensor]
) -> FeedForward[Tensor]:
    """Return the packed feed-forward block of a layer."""
    if layer.experts is not None and not layer.is_dense:
        return ExpertsFeedForward(layer.experts, weights, ops)
    return DenseFeedForward(spec, weights, ops, layer.gate_deviations)
