"""OLMo 2: Llama whose norms follow the blocks, with norms of all query and of all key heads
together."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_keys import windows_of_each
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import HF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile

GGUF_WINDOW_PERIOD = 4


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' Olmo2Config."""

    rms_norm_eps: float = 1e-5


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    return with_norms(decoder_spec(config, where, uniform_layers(config, where)))


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file of OLMo 2 or OLMo 3. Layers with a sliding window have
    no RoPE scaling."""
    plain = with_norms(gguf_decoder_spec(file, window_period=GGUF_WINDOW_PERIOD))
    local = plain.local_rope or plain.rope
    return replace(plain, local_rope=replace(local, scaling=None))


def with_norms(plain: DecoderSpec) -> DecoderSpec:
    """Return `plain` with the norms of OLMo 2 and OLMo 3."""
    return replace(plain, norms="post", qk_norm=True, qk_norm_form="all")


NAMES = replace(
    HF_NAMES,
    attention_post_norm="post_attention_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)
FAMILY = Family(
    hf=HfDecoder("olmo2", "Olmo2ForCausalLM", Config, spec, NAMES),
    gguf=GgufDecoder("olmo2", gguf_spec, keys=windows_of_each),
)
