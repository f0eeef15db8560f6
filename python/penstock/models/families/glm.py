"""GLM: Llama with biases on q, k and v, a fused gate and up projection, and a rotary embedding of
neighbouring components (2i, 2i + 1) in the first half of each head. The GGUF architecture is
`chatglm`."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import partial_rotary_decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import GGUF_FUSED_GATE_UP_NAMES, HF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' GlmConfig."""

    num_key_value_heads: int | None = 2
    head_dim: int | None = 128
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1.5625e-7
    attention_bias: bool = True
    partial_rotary_factor: float | None = 0.5


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    plain = partial_rotary_decoder_spec(config, where, uniform_layers(config, where))
    return replace(plain, output_bias=False, interleaved_rope=True)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    return replace(gguf_decoder_spec(file), interleaved_rope=True)


NAMES = replace(HF_NAMES, gate="mlp.gate_up_proj", up="mlp.gate_up_proj")
FAMILY = Family(
    hf=HfDecoder("glm", "GlmForCausalLM", Config, spec, NAMES),
    gguf=GgufDecoder("chatglm", gguf_spec, GGUF_FUSED_GATE_UP_NAMES),
)
