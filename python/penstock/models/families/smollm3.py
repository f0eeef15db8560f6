"""SmolLM3: Llama in which every fourth layer has no rotary embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import num_layers, typed_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile

GGUF_INTERVAL: Final = 4
"""Distance between layers without rotary embedding, which GGUF files do not have."""


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' SmolLM3Config."""

    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32_768
    rope_theta: float | None = 2e6
    tie_word_embeddings: bool | None = True
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: int | None = 4
    sliding_window: int | None = None
    use_sliding_window: bool | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. A sliding window applies to the layers that
    `layer_types` names, or, without this key, to the layers without rotary embedding."""
    rotary = _rotary(config, where)
    window = config.sliding_window if config.use_sliding_window else None
    layers = typed_layers(config, where, window, lambda layer: not rotary[layer])
    layers = tuple(
        replace(layer, rotary=rotates) for layer, rotates in zip(layers, rotary, strict=True)
    )
    return decoder_spec(config, where, layers)


def _rotary(config: Config, where: str) -> list[bool]:
    """Return for each layer whether it rotates queries and keys. Despite its name, `no_rope_layers`
    has a 1 for each layer with rotary embedding."""
    layers = num_layers(config, where)
    given, interval = config.no_rope_layers, config.no_rope_layer_interval
    if given:
        if len(given) != layers:
            raise ModelError(f"{where}: no_rope_layers has {len(given)} entries")
        return [bool(rotates) for rotates in given]
    if interval is not None and interval < 1:
        raise ModelError(f"{where}: no_rope_layer_interval {interval} is not positive")
    return [interval is None or (layer + 1) % interval != 0 for layer in range(layers)]


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    plain = gguf_decoder_spec(file)
    layers = tuple(
        replace(layer, rotary=(index + 1) % GGUF_INTERVAL != 0)
        for index, layer in enumerate(plain.layers)
    )
    return replace(plain, layers=layers)


FAMILY = Family(
    hf=HfDecoder("smollm3", "SmolLM3ForCausalLM", Config, spec),
    gguf=GgufDecoder("smollm3", gguf_spec, permuted_qk=True),
)
