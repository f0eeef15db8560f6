"""GLM-4 (0414): GLM with a second norm after attention and after the feed-forward."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import GGUF_FUSED_GATE_UP_NAMES
from penstock.models.families import glm
from penstock.quant.gguf.gguf_file import GgufFile


def spec(config: glm.Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. Glm4Config has the same defaults as
    GlmConfig."""
    return replace(glm.spec(config, where), norms="sandwich")


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    return replace(glm.gguf_spec(file), norms="sandwich")


NAMES = replace(
    glm.NAMES,
    attention_post_norm="post_self_attn_layernorm",
    mlp_post_norm="post_mlp_layernorm",
)
FAMILY = Family(
    hf=HfDecoder("glm4", "Glm4ForCausalLM", glm.Config, spec, NAMES),
    gguf=GgufDecoder("glm4", gguf_spec, GGUF_FUSED_GATE_UP_NAMES),
)
