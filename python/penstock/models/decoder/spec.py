"""The configuration of a decoder: every difference between model families is a field here.

The forward pass (`decoder.py`) reads nothing else. Families differ only in how they fill a
`DecoderSpec`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.base.errors import ModelError
from penstock.kernels.recurrent_state import StateShape
from penstock.models.decoder.block_specs import (
    PLAIN_ATTENTION,
    AltUpSpec,
    LayerAttention,
    PerLayerInputsSpec,
)
from penstock.models.decoder.experts_spec import ExpertsSpec, check_experts
from penstock.models.decoder.mixer import CacheSize, MixerSpec
from penstock.models.decoder.mtp_spec import MtpSpec
from penstock.models.decoder.rope_spec import RopeSpec, check_rope
from penstock.models.decoder.spec_limits import (
    MAX_CONTEXT,
    MAX_EXPERTS_IN_ALL,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    check_factor,
    check_sizes,
)

FeedForwardActivation: TypeAlias = Literal["silu", "gelu_tanh", "relu_squared"]
Norms: TypeAlias = Literal["pre", "post", "sandwich"]
"""The norms of a block. "pre": its input is normalized; "post": its output is normalized, before it
is added to the residual stream; "sandwich": both are."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The settings that may differ between the layers of a model.

    - `window`: number of last positions that a token attends to, its own included; 0: full
      attention.
    - `rotary`: False: the layer has no position embedding.
    - `experts`: the mixture of experts that replaces the feed-forward, or is beside it; None: a
      dense layer.
    - `mixer`: the block that replaces attention; None: attention.
    - `blocks`: the blocks that the layer has. A layer with only one block has only its norm.
    - `intermediate_size`: the width of the dense feed-forward; None: that of the model.
    - `attention`: what differs from the attention of the model.
    - `norms`: where the layer's blocks have norms; None: as `DecoderSpec.norms`.
    - `gate_deviations`: of the feed-forward's gates, only those above mean + gate_deviations *
      (standard deviation) of the token's gates count, by their distance; None: all gates count.
    """

    window: int = 0
    rotary: bool = True
    experts: ExpertsSpec | None = None
    mixer: MixerSpec | None = None
    blocks: Literal["both", "mixer", "feed_forward"] = "both"
    intermediate_size: int | None = None
    attention: LayerAttention = PLAIN_ATTENTION
    gate_deviations: float | None = None
    norms: Norms | None = None

    @property
    def reach(self) -> int:
        """The window of the layer's attention as ops take it: the sliding window, or minus the
        size of its chunks."""
        return self.window or -self.attention.chunk

    @property
    def has_mixer(self) -> bool:
        """Whether the layer has attention or another mixer."""
        return self.blocks != "feed_forward"

    @property
    def has_attention(self) -> bool:
        """Whether the layer has the attention that `DecoderSpec` describes."""
        return self.has_mixer and self.mixer is None

    @property
    def has_feed_forward(self) -> bool:
        """Whether the layer has a feed-forward or a mixture of experts."""
        return self.blocks != "mixer"

    @property
    def is_dense(self) -> bool:
        """Whether the layer has a dense feed-forward."""
        return self.has_feed_forward and (self.experts is None or self.experts.beside_dense)


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """The configuration of a decoder. All sizes are counts of elements.

    - `intermediate_size`: the width of the feed-forward.
    - `max_model_len`: the model's context length in tokens.
    - `qkv_bias`, `output_bias`, `mlp_bias`: whether these linear layers have biases.
    - `qk_norm`: queries and keys are normalized.
    - `qk_norm_form`: how they are: "head": each head, before the rotation; "rotated": each head,
      after it; "all": all heads of a token together, before the rotation.
    - `output_gate`: the output of attention is multiplied by the sigmoid of a gate, before the
      output projection. The query projection of the file has the queries and the gates of each head
      in turn.
    - `tied_head`: the language-model head is the embedding matrix.
    - `head_bias`: the language-model head has a bias.
    - `local_rope`: the RoPE of the layers with a sliding window; None: `rope` in all layers.
    - `attention_scale`: the factor on attention scores; None: 1 / sqrt(head_dim).
    - `embedding_scale`: the factor on the token embeddings.
    - `logit_scale`: the factor on the logits. The final norm's weights are multiplied by it.
    - `gate_factor`, `down_factor`: factors on the weights of a dense feed-forward's gate and of its
      last projection, by which these are multiplied when they are read.
    - `merged_factors`: the file's weights include factors of this kind that the file does not name,
      and by which adapters would have to be multiplied.
    - `norm_offset`: is added to the norm weights of the file.
    - `norm_kind`: "rms": RMSNorm; "layer": LayerNorm. Norms of heads are RMSNorms.
    - `norm_bias`: LayerNorms have biases.
    - `norms`: where a block has norms: "pre": of its input; "post": of its output, before that is
      added to the residual; "sandwich": both.
    - `interleaved_rope`: the rows of q and k, in the model and in its adapters, are ordered for a
      rotation of neighbouring components (2i, 2i + 1). They are reordered when they are read.
    - `parallel`: attention and feed-forward read the same input, with one norm, and both results
      are added to the residual.
    - `gated`: the feed-forward has a gate, down(activation(gate(x)) * up(x)); False:
      down(activation(up(x))).
    - `activation`: the activation of the feed-forward.
    - `bidirectional`: tokens also attend to later tokens. Each sequence is computed in one step.
    - `predicting_layers`: the number of layers that follow in the file and predict further tokens.
      Their tensors are not read with those of the decoder.
    - `mtp`: the head that predicts further tokens, which a file may lack; None: the family has
      none, or none that is supported.
    - `media_visibility`: the layers in which the tokens of an image may see each other in both
      directions: "all" layers, or only those with a sliding window, "windowed".
    - `sinks`: each query head has a learned attention sink, a score that takes part in the softmax
      but has no value vector.
    - `value_norm`: values are normalized per head, without weights.
    - `attention_cap`, `logit_cap`: attention scores and logits are bounded to cap * tanh(x / cap);
      0: they are not bounded.
    - `layer_scalars`: the residual stream is multiplied by a learned number after each layer.
    - `per_layer_inputs`: each layer also reads a vector of its own per token.
    - `altup`: four parallel residual streams (AltUp), and a learned residual beside attention.
    """

    architecture: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    norm_eps: float
    rope: RopeSpec
    layers: tuple[LayerSpec, ...]
    max_model_len: int
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    qk_norm_form: Literal["head", "rotated", "all"] = "head"
    tied_head: bool = False
    head_bias: bool = False
    local_rope: RopeSpec | None = None
    attention_scale: float | None = None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    gate_factor: float = 1.0
    down_factor: float = 1.0
    merged_factors: bool = False
    norm_offset: float = 0.0
    norm_kind: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    norms: Norms = "pre"
    interleaved_rope: bool = False
    parallel: bool = False
    gated: bool = True
    activation: FeedForwardActivation = "silu"
    bidirectional: bool = False
    media_visibility: Literal["all", "windowed"] = "all"
    sinks: bool = False
    value_norm: bool = False
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    layer_scalars: bool = False
    per_layer_inputs: PerLayerInputsSpec | None = None
    altup: AltUpSpec | None = None
    predicting_layers: int = 0
    mtp: MtpSpec | None = None

    @property
    def q_rows(self) -> int:
        """The number of rows of the query projection, unless a layer differs."""
        return self.num_heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        """The number of rows of the key projection, equal to that of the value projection, unless a
        layer differs."""
        return self.num_kv_heads * self.head_dim

    def heads(self, layer: LayerSpec) -> tuple[int, int, int]:
        """Return the number of query heads, the number of KV heads and the head dimension of the
        attention of a layer."""
        own = layer.attention
        kv_heads = self.num_kv_heads if own.num_kv_heads is None else own.num_kv_heads
        return self.num_heads, kv_heads, self.head_dim if own.head_dim is None else own.head_dim

    def qkv_rows(self, layer: LayerSpec) -> tuple[int, int, int]:
        """Return the number of rows of the query, key and value projections of a layer; 0 for a
        projection that it lacks."""
        heads, kv_heads, dim = self.heads(layer)
        keys = 0 if layer.attention.cache_of is not None else kv_heads * dim
        return heads * dim, keys, 0 if layer.attention.keys_are_values else keys

    def layer_rope(self, layer: LayerSpec) -> RopeSpec:
        """Return the RoPE of a layer with position embedding."""
        return self.local_rope if layer.window and self.local_rope is not None else self.rope

    def layer_norms(self, layer: LayerSpec) -> Norms:
        """Return where the blocks of a layer have norms."""
        return layer.norms or self.norms

    def feed_forward_size(self, layer: LayerSpec) -> int:
        """Return the width of the dense feed-forward of a layer."""
        return (
            self.intermediate_size if layer.intermediate_size is None else layer.intermediate_size
        )

    @property
    def caches(self) -> tuple[CacheSize | None, ...]:
        """The KV cache of each layer; None for a layer without one. `LayerAttention.cache_of` names
        the layer whose cache another layer reads."""

        def cache(layer: LayerSpec) -> CacheSize | None:
            if not layer.has_mixer or layer.attention.cache_of is not None:
                return None
            if layer.mixer is not None:
                return layer.mixer.cache
            _, kv_heads, dim = self.heads(layer)
            return CacheSize(kv_heads, dim, dim)

        return tuple(map(cache, self.layers))

    @property
    def states(self) -> tuple[StateShape | None, ...]:
        """The recurrent state of each layer; None for a layer without one."""
        return tuple(
            layer.mixer.state if layer.has_mixer and layer.mixer is not None else None
            for layer in self.layers
        )

    @property
    def last_writer(self) -> int:
        """The index of the last layer that writes a KV cache or a recurrent state. The layers after
        it only read caches, so they are needed only for the tokens whose results are used."""
        writers = [
            index
            for index, layer in enumerate(self.layers)
            if layer.has_mixer and layer.attention.cache_of is None
        ]
        return max(writers, default=len(self.layers) - 1)

    @property
    def has_tail(self) -> bool:
        """Whether the last layers only read the caches of others. `Decoder.tail` runs them for the
        sampled tokens alone."""
        readers = self.layers[self.last_writer + 1 :]
        return any(layer.has_attention for layer in readers) and not self.is_recurrent

    @property
    def is_recurrent(self) -> bool:
        """Whether a layer has a recurrent state."""
        return any(state is not None for state in self.states)

    @property
    def stream_columns(self) -> int:
        """The maximum number of elements that one token needs outside of blocks: the residual
        stream, the input of a block and its result; with per-layer inputs also the embedding and a
        layer's input; with parallel streams also these, their predictions and corrections."""
        columns = 3 * self.hidden_size
        if self.per_layer_inputs is not None:
            columns += self.hidden_size + 4 * self.per_layer_inputs.width
        return columns if self.altup is None else columns + 9 * self.hidden_size

    @property
    def mixer_columns(self) -> int:
        """The maximum number of scratch elements that one token needs in the mixer of any layer:
        for attention q, k, v, rotated queries and the output, the gate with its product, and q, k,
        v with normalized values."""
        widest = 0
        for layer in set(self.layers):
            if layer.has_attention:
                heads, kv_heads, dim = self.heads(layer)
                qkv = sum(self.qkv_rows(layer)) + 2 * heads * dim
                gates = 2 * heads * dim * self.output_gate
                normal = (heads + 2 * kv_heads) * dim * self.value_norm
                widest = max(widest, qkv + gates + normal)
            elif layer.mixer is not None and layer.has_mixer:
                widest = max(widest, layer.mixer.inner_columns(self))
        return widest

    @property
    def inner_columns(self) -> int:
        """The maximum number of scratch elements that one token needs in the feed-forward of any
        layer: gate, up and their product, and the input and the result of attention if the two are
        parallel, or those of a mixture of experts."""
        sizes = [self.feed_forward_size(layer) for layer in self.layers if layer.is_dense]
        widest = max(sizes, default=0) * (3 if self.gated else 2)
        for experts in {layer.experts for layer in self.layers if layer.has_feed_forward} - {None}:
            assert experts is not None
            routed = experts.inner_columns(self.hidden_size)
            # Beside a dense feed-forward: its result, and the normalized inputs and results.
            widest = max(widest, routed + 5 * self.hidden_size * experts.beside_dense)
        return widest + (self.hidden_size if self.parallel else 0)

    def check(self, where: str) -> None:
        """Check the sizes and the combination of features. Raises ModelError that starts with
        `where` and names the field at fault."""
        limits = {
            "number of layers": (len(self.layers), MAX_LAYERS),
            "width": (self.hidden_size, MAX_WIDTH),
            "heads": (self.num_heads, MAX_WIDTH),
            "key-value heads": (self.num_kv_heads, MAX_WIDTH),
            "head dimension": (self.head_dim, MAX_WIDTH),
            "feed-forward width": (self.intermediate_size, MAX_WIDTH),
            "vocabulary": (self.vocab_size, MAX_VOCAB),
            "context length": (self.max_model_len, MAX_CONTEXT),
        }
        check_sizes(where, limits)
        for index, layer in enumerate(self.layers):
            if layer.has_attention:
                self._check_attention(index, layer, where)
        if self.interleaved_rope and self.qk_norm:
            raise ModelError(f"{where}: norms of heads are not supported with an interleaved rope")
        if self.interleaved_rope and self.output_gate:
            raise ModelError(f"{where}: an output gate is not supported with an interleaved rope")
        if not 0 < self.norm_eps < math.inf:
            raise ModelError(f"{where}: norm eps must be finite and above 0, not {self.norm_eps}")
        for rope in (self.rope, self.local_rope):  # a table is made even if no layer rotates
            if rope is not None:
                check_rope(rope, MAX_WIDTH, where)
        self._check_factors(where)
        for cap in (self.attention_cap, self.logit_cap):
            if not 0 <= cap < math.inf:
                raise ModelError(f"{where}: soft cap {cap} is not a finite number from 0 on")
        if self.attention_scale is not None and not 0 < self.attention_scale < math.inf:
            raise ModelError(
                f"{where}: attention scale must be positive and finite, not {self.attention_scale}"
            )
        if not 0 <= self.predicting_layers <= MAX_LAYERS:
            raise ModelError(
                f"{where}: number of layers that predict tokens {self.predicting_layers} is not in"
                f" 0..{MAX_LAYERS}"
            )
        if any(not 0 <= layer.window <= MAX_CONTEXT for layer in self.layers):
            raise ModelError(f"{where}: the sliding window of a layer is not in 0..{MAX_CONTEXT}")
        for mixer in {layer.mixer for layer in self.layers if layer.has_mixer}:
            if mixer is not None:
                mixer.check(self, where)
        for size in {self.feed_forward_size(layer) for layer in self.layers if layer.is_dense}:
            check_sizes(where, {"feed-forward width": (size, MAX_WIDTH)})
        mixtures = [layer.experts for layer in self.layers if layer.experts is not None]
        for experts in set(mixtures):
            check_experts(experts, where)
        if sum(experts.count for experts in mixtures) > MAX_EXPERTS_IN_ALL:
            raise ModelError(
                f"{where}: more than {MAX_EXPERTS_IN_ALL} experts in all layers are not supported"
            )
        if mixtures and self.mlp_bias:
            raise ModelError(f"{where}: experts are not supported together with mlp_bias")
        for activation in {experts.activation for experts in mixtures} - {"swiglu_oai"}:
            if activation != self.activation:
                raise ModelError(
                    f"{where}: these experts are supported only with {activation}, not"
                    f" {self.activation}"
                )
        if self.sinks and self.bidirectional:
            raise ModelError(f"{where}: attention sinks are not supported in a bidirectional model")
        if not self.gated and self.activation == "silu":
            raise ModelError(f"{where}: silu is supported only in a feed-forward with a gate")
        if self.gated and self.activation == "relu_squared":
            raise ModelError(f"{where}: relu_squared is supported only without a gate")
        if self.parallel and (
            any(self.layer_norms(layer) != "pre" for layer in self.layers)
            or any(layer.blocks != "both" for layer in self.layers)
        ):
            raise ModelError(
                f"{where}: parallel blocks are supported only with norms of their inputs and with"
                " both blocks in every layer"
            )
        if self.head_bias and self.tied_head:
            raise ModelError(f"{where}: a tied language-model head with a bias is not supported")
        for deviations in {layer.gate_deviations for layer in self.layers} - {None}:
            assert deviations is not None
            if not math.isfinite(deviations) or not self.gated or self.activation != "gelu_tanh":
                raise ModelError(
                    f"{where}: a cutoff of gates at {deviations} deviations is supported only if"
                    " it is finite, and only with gates and gelu_tanh"
                )
        self._check_streams(where)

    def _check_factors(self, where: str) -> None:
        """Check the factors on embeddings, logits and weights."""
        factors = {
            "embedding scale": self.embedding_scale,
            "logit scale": self.logit_scale,
            "factor of gates": self.gate_factor,
            "factor of the feed-forward": self.down_factor,
        }
        for name, factor in factors.items():
            check_factor(factor, name, where)
        for scaling in {layer.attention.query_scaling for layer in self.layers} - {None}:
            assert scaling is not None
            if not math.isfinite(scaling.strength) or not 1 <= scaling.period <= MAX_CONTEXT:
                raise ModelError(
                    f"{where}: a factor on queries that grows by {scaling.strength} every"
                    f" {scaling.period} tokens is not supported"
                )

    def _check_attention(self, index: int, layer: LayerSpec, where: str) -> None:
        heads, kv_heads, dim = self.heads(layer)
        sizes = {"key-value heads": (kv_heads, MAX_WIDTH), "head dimension": (dim, MAX_WIDTH)}
        check_sizes(where, sizes)
        if heads % kv_heads:
            raise ModelError(
                f"{where}: {heads} heads cannot be divided among {kv_heads} key-value heads"
            )
        if layer.rotary:
            check_rope(self.layer_rope(layer), dim, where)
        own = layer.attention
        if not 0 <= own.chunk <= MAX_CONTEXT or (own.chunk and layer.window):
            raise ModelError(
                f"{where}: attention chunks of {own.chunk} tokens with a window of {layer.window}"
                " are not supported"
            )
        if own.keys_are_values and not self.value_norm:
            raise ModelError(f"{where}: values that are keys are supported only with a value norm")
        if own.cache_of is not None:
            self._check_shared_cache(index, own.cache_of, where)

    def _check_streams(self, where: str) -> None:
        """Check the per-layer inputs and the parallel residual streams."""
        own = self.per_layer_inputs
        if own is not None:
            sizes = {
                "width of per-layer inputs": (own.width, MAX_WIDTH),
                "vocabulary of per-layer inputs": (own.vocab_size, MAX_VOCAB),
            }
            check_sizes(where, sizes)
            if not 0 <= own.stand_in < own.vocab_size:
                raise ModelError(
                    f"{where}: token {own.stand_in} is not in the vocabulary of per-layer inputs,"
                    f" {own.vocab_size}"
                )
        if self.altup is None:
            return
        check_sizes(where, {"laurel rank": (self.altup.laurel_rank, MAX_WIDTH)})
        if own is None or any(layer.blocks != "both" for layer in self.layers):
            raise ModelError(
                f"{where}: parallel residual streams are supported only with per-layer inputs and"
                " with both blocks in every layer"
            )

    def _check_shared_cache(self, index: int, source: int, where: str) -> None:
        """Check that layer `index` can read the cache of layer `source`."""
        if not 0 <= source < index or not self.layers[source].has_attention:
            raise ModelError(f"{where}: layer {index} cannot read the cache of layer {source}")
        reader, owner = self.layers[index], self.layers[source]
        if owner.attention.cache_of is not None or self.heads(reader) != self.heads(owner):
            raise ModelError(
                f"{where}: layer {index} cannot read the cache of layer {source}, which has no"
                " cache or one of another size"
            )
        if not self.qk_norm:
            raise ModelError(f"{where}: shared caches are supported only with norms of heads")
