"""The weights of a decoder as they are read from files, before a backend packs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.kernels.isa.instruction_sets import MatrixForm
from penstock.kernels.weights import Experts, Linear, Matrix
from penstock.models.decoder.altup import LayerAltUpWeights
from penstock.models.decoder.expert_weights import BesideNorms, SharedWeights
from penstock.models.decoder.mixer import LayerTensors, Vector
from penstock.models.decoder.per_layer_inputs import LayerInputWeights

MatrixBytes = Callable[[Matrix], int]
"""Returns the bytes that a matrix occupies after a backend has packed it."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer.

    - `qkv`: q, k and v fused. `output_gate` [H * D, W]: see `DecoderSpec.output_gate`. `gate_up`:
      gate and up fused, or up alone without a gate.
    - `attention_norm`, `attention_post_norm`: [W], of the input and the output of attention or
      another mixer. `mlp_norm`, `mlp_post_norm`: [W], of the feed-forward. Norms with biases are
      [2, W], weight and bias. `q_norm`, `k_norm`: [D], or [H * D] and [K * D] of all heads.
    - `router` [E, W] and `experts`: only in a mixture of experts, which has no `gate_up` and
      `down` unless it is beside a dense feed-forward. `beside`: the norms around both.
      `router_bias` [E]: counts for the choice of experts. `expert_scale` [E]: scales their shares.
      `shared`: the shared experts.
    - `sinks`: [H].
    - `mixer`: what `MixerSpec.read` returned.
    - `scalar`: the factor on the residual stream after the layer.
    - `input`, `altup`: only with `DecoderSpec.per_layer_inputs` and `altup`.

    A part that the layer lacks is None.
    """

    attention_norm: Vector | None = None
    qkv: Linear | None = None
    output_gate: Linear | None = None
    q_norm: Vector | None = None
    k_norm: Vector | None = None
    output: Linear | None = None
    mlp_norm: Vector | None = None
    gate_up: Linear | None = None
    down: Linear | None = None
    router: Linear | None = None
    experts: Experts | None = None
    attention_post_norm: Vector | None = None
    mlp_post_norm: Vector | None = None
    sinks: Vector | None = None
    mixer: Any = None
    scalar: float = 1.0
    input: LayerInputWeights | None = None
    beside: BesideNorms | None = None
    altup: LayerAltUpWeights | None = None
    router_bias: Vector | None = None
    expert_scale: Vector | None = None
    shared: SharedWeights | None = None


class Weights(Protocol):
    """The weights from which a decoder is packed. All methods raise ModelError naming file and
    tensor."""

    def embedding(self) -> Matrix:
        """Return the embedding [V, W]."""
        ...

    def head(self) -> Linear | None:
        """Return the language-model head [V, W], or None if it is the embedding matrix."""
        ...

    def final_norm(self) -> Vector:
        """Return the weight [W] of the last norm, or its weight and its bias [2, W]."""
        ...

    def rope_factors(self) -> Vector | None:
        """Return the divisors [rotary_dim / 2] of the RoPE frequencies, or None if the file has
        none."""
        ...

    def layers(self) -> Iterator[LayerWeights]:
        """Yield the weights of every layer in order."""
        ...

    def parts(self) -> LayerTensors:
        """Return a reader of the tensors outside of layers, by roles of
        `TensorNames.model_parts`."""
        ...

    def forms(self) -> tuple[MatrixForm, ...]:
        """Return the storage formats and sizes of the matrices."""
        ...

    def packed_bytes(self, size: MatrixBytes) -> int:
        """Return the bytes of all packed weights. `size(matrix)`: the bytes of a packed matrix;
        vectors are float32."""
        ...

    def float8_savings(self, size: MatrixBytes) -> int:
        """Return the bytes that would be saved if the layers' float matrices, including experts but
        not routers, were stored as 8-bit floats with one scale per row. `size`: see
        `packed_bytes`."""
        ...
