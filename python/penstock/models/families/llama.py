"""Llama, and models with the same architecture (SmolLM2, TinyLlama, Yi, DeepSeek distillations).

The GGUF architecture is also llama. llama.cpp converts Mistral and Mixtral to it too.
"""

from __future__ import annotations

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec


def spec(config: HfConfig, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. A sliding window in the config is ignored,
    as in transformers."""
    return decoder_spec(config, where, uniform_layers(config, where))


FAMILY = Family(
    hf=HfDecoder("llama", "LlamaForCausalLM", HfConfig, spec),
    gguf=GgufDecoder("llama", permuted_qk=True),
)
