"""Builds the DecoderSpec of a Llama-like decoder from its config.json. Families override single
fields."""

from __future__ import annotations

from typing import Final

from penstock.base.errors import ModelError
from penstock.models.configuration import hf_rope
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.decoder.rope_spec import RopeSpec, YarnScaling
from penstock.models.decoder.spec import DecoderSpec, FeedForwardActivation, LayerSpec

ACTIVATIONS: Final[dict[str, FeedForwardActivation]] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu_squared",
}
"""`hidden_act` in config.json -> `DecoderSpec.activation`."""


def decoder_spec(config: HfConfig, where: str, layers: tuple[LayerSpec, ...]) -> DecoderSpec:
    """Return the spec of a Llama-like decoder with the given layers. `architecture` is left empty:
    `HfDecoder.read` sets it.

    Raises ModelError that starts with `where` and names the key. A `partial_rotary_factor` other
    than 1 is refused: implementations disagree on its meaning in families without such models.
    """
    spec = partial_rotary_decoder_spec(config, where, layers)
    for rope in (spec.rope, spec.local_rope):
        if rope is not None and rope.rotary_dim != spec.head_dim:
            factor = rope.rotary_dim / spec.head_dim
            raise ModelError(f"{where}: partial_rotary_factor {factor} is not supported")
    return spec


def partial_rotary_decoder_spec(
    config: HfConfig, where: str, layers: tuple[LayerSpec, ...]
) -> DecoderSpec:
    """Return the same spec as `decoder_spec`, but accept a `partial_rotary_factor` other than 1,
    for families that may rotate only the first components of each head."""
    if config.hidden_act not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ModelError(
            f"{where}: hidden_act {config.hidden_act!r} is not supported, known are {known}"
        )
    rope = hf_rope.rope_spec(config, where)
    return DecoderSpec(
        architecture="",
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=hf_rope.head_dim(config),
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        norm_eps=config.rms_norm_eps,
        rope=rope,
        layers=layers,
        max_model_len=_max_model_len(config, rope),
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        tied_head=bool(config.tie_word_embeddings),
        local_rope=hf_rope.local_rope_spec(config, where),
        activation=ACTIVATIONS[config.hidden_act],
        bidirectional=_is_bidirectional(config, layers, where),
    )


def _max_model_len(config: HfConfig, rope: RopeSpec) -> int:
    """Return the model's context length. With YaRN, `max_position_embeddings` may be the length
    before or after scaling; the longer one is returned."""
    if not isinstance(rope.scaling, YarnScaling):
        return config.max_position_embeddings
    scaled = round(rope.scaling.original_context * rope.scaling.factor)
    return max(config.max_position_embeddings, scaled)


def _is_bidirectional(config: HfConfig, layers: tuple[LayerSpec, ...], where: str) -> bool:
    """Return whether tokens also attend to later tokens. Raises ModelError for `is_causal` false
    together with a sliding window: the config does not say whether the window extends to one side
    or to both."""
    if config.is_causal is not False:
        return False
    if any(layer.window for layer in layers):
        raise ModelError(
            f"{where}: is_causal false is not supported together with a sliding window"
        )
    return True
