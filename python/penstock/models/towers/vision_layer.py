"""The packed weights of a layer of a vision transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Dense, Linear
from penstock.models.towers.packed_layers import Norm, Products, packed_norm
from penstock.models.towers.tower_weights import Floats
from penstock.models.towers.vision_spec import VisionSpec
from penstock.models.towers.vision_weights import TowerNorm, VisionLayerWeights

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class VisionLayer(Generic[Tensor]):
    """The packed weights of one layer. `kind`: see `VisionSpec.kinds`."""

    kind: int
    attention_norm: Norm[Tensor]
    qkv: Products[Tensor]
    q_norm: Any
    k_norm: Any
    ones: Any
    output: Products[Tensor]
    attention_post_norm: Norm[Tensor] | None
    attention_scale: Any
    mlp_norm: Norm[Tensor]
    up: Products[Tensor]
    down: Products[Tensor]
    mlp_post_norm: Norm[Tensor] | None
    mlp_scale: Any

    @property
    def is_capturable(self) -> bool:
        """Whether the layer copies nothing from host memory, which a capture cannot do."""
        return all(one.is_single for one in (self.qkv, self.output, self.up, self.down))


def packed_layer(
    ops: Ops[Tensor], spec: VisionSpec, layer: VisionLayerWeights, kind: int
) -> VisionLayer[Tensor]:
    """Pack the weights of a layer. `kind`: see `VisionSpec.kinds`."""

    def head_norm(weight: Floats | None) -> Norm[Tensor] | None:
        norm = None if weight is None else TowerNorm(weight, None)
        return Norm.packed(ops, norm, spec.qk_norm_eps)

    def factor(values: Floats | None) -> Any:
        return None if values is None else ops.constant(values)

    return VisionLayer(
        kind=kind,
        attention_norm=packed_norm(ops, layer.attention_norm, spec.norm_eps),
        qkv=Products(ops, layer.qkv),
        q_norm=head_norm(layer.q_norm),
        k_norm=head_norm(layer.k_norm),
        ones=ops.constant(np.ones(spec.head_dim, np.float32)) if spec.head_norms else None,
        output=Products(ops, layer.output),
        attention_post_norm=Norm.packed(ops, layer.attention_post_norm, spec.norm_eps),
        attention_scale=factor(layer.attention_scale),
        mlp_norm=packed_norm(ops, layer.mlp_norm, spec.norm_eps),
        up=Products(ops, layer.up),
        down=Products(ops, layer.down),
        mlp_post_norm=Norm.packed(ops, layer.mlp_post_norm, spec.norm_eps),
        mlp_scale=factor(layer.mlp_scale),
    )


def is_float32(weight: Linear) -> bool:
    """Return whether a linear layer has a float32 matrix."""
    return any(isinstance(part, Dense) and part.dtype == "f32" for part in weight.parts)
