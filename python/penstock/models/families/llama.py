"""Llama, and models that follow it in everything (SmolLM2, TinyLlama, Yi, DeepSeek distillations).

GGUF: llama.cpp calls them llama too, and writes Mistral and Mixtral under the same architecture.
"""

from __future__ import annotations

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec


def spec(config: HfConfig, where: str) -> DecoderSpec:
    """Return the spec of a config.json. A window that it names does not apply, as in
    transformers."""
    return decoder_spec(config, where, uniform_layers(config, where))


FAMILY = Family(
    hf=HfDecoder("llama", "LlamaForCausalLM", HfConfig, spec),
    gguf=GgufDecoder("llama", permuted_qk=True),
)
