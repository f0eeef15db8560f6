"""Gemma 2: scaled embeddings, norms before and after each block, GELU, attention scores and logits
with a soft cap, and a sliding window in every second layer."""

from __future__ import annotations

from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gemma_text import NAMES, GemmaConfig, llama_keys
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_keys import Keys
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import all_but_last_of, typed_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile

PERIOD = 2
GGUF_WINDOW = 4096
LAYERS_OF_27B = 46
"""The number of layers of the 27B model, the only one whose attention scale does not follow from
its head dimension."""


class Config(GemmaConfig):
    """The keys of config.json, with the defaults of transformers' Gemma2Config."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    max_position_embeddings: int = 8192
    query_pre_attn_scalar: float | None = 256
    sliding_window: int | None = 4096
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0
    use_bidirectional_attention: bool | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. The checkpoint stores the norm weights minus
    1."""
    layers = typed_layers(config, where, config.sliding_window, all_but_last_of(PERIOD, where))
    if config.use_bidirectional_attention:
        raise ModelError(f"{where}: use_bidirectional_attention true is not supported")
    scalar = config.query_pre_attn_scalar
    return replace(
        decoder_spec(llama_keys(config, bidirectional=False), where, layers),
        attention_scale=scalar**-0.5 if scalar and scalar > 0 else None,
        embedding_scale=max(config.hidden_size, 0) ** 0.5,
        norm_offset=1.0,
        norms="sandwich",
        attention_cap=config.attn_logit_softcapping or 0.0,
        logit_cap=config.final_logit_softcapping or 0.0,
    )


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file, filling in what the metadata omits. The converter has
    already added 1 to the norm weights."""
    own_keys = frozenset({"attn_logit_softcapping", "final_logit_softcapping"})
    plain = gguf_decoder_spec(file, own_keys, PERIOD)
    scale = plain.head_dim**-0.5
    if len(plain.layers) == LAYERS_OF_27B:
        scale = (plain.hidden_size / plain.num_heads) ** -0.5
    window = file.integer("gemma2.attention.sliding_window", GGUF_WINDOW)
    return replace(
        plain,
        layers=tuple(
            replace(layer, window=window if (index + 1) % PERIOD else 0)
            for index, layer in enumerate(plain.layers)
        ),
        attention_scale=plain.attention_scale or scale,
        embedding_scale=plain.hidden_size**0.5,
        norms="sandwich",
        activation="gelu_tanh",
        attention_cap=file.real("gemma2.attn_logit_softcapping", 50.0),
        logit_cap=file.real("gemma2.final_logit_softcapping", 30.0),
    )


def gguf_keys(spec: DecoderSpec) -> Keys:
    """Return the keys that `gguf_spec` reads."""
    return {
        "attn_logit_softcapping": float(spec.attention_cap),
        "final_logit_softcapping": float(spec.logit_cap),
    }


FAMILY = Family(
    hf=HfDecoder("gemma2", "Gemma2ForCausalLM", Config, spec, NAMES),
    gguf=GgufDecoder("gemma2", gguf_spec, keys=gguf_keys),
)
