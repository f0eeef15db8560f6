"""EXAONE 4: norms after the blocks and of each query and key head. Models with a sliding window
have full attention without rotary embedding in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_keys import windows_of_each
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import all_but_last_of, num_layers, typed_layers
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.families.olmo2 import NAMES
from penstock.quant.gguf.gguf_file import GgufFile

GGUF_WINDOW_PERIOD = 4


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' Exaone4Config.

    `sliding_window_pattern`: the number of layers of which the last has full attention, or a letter
    for each of these layers, "L" for a sliding window.
    """

    num_key_value_heads: int | None = 32
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = 4096
    sliding_window_pattern: int | str | None = 4


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    plain = decoder_spec(config, where, _layers(config, where))
    return replace(_with_norms(plain), qkv_bias=False, output_bias=False, mlp_bias=False)


def _layers(config: Config, where: str) -> tuple[LayerSpec, ...]:
    window, pattern = config.sliding_window, config.sliding_window_pattern
    if not window:
        return (LayerSpec(),) * num_layers(config, where)
    if isinstance(pattern, str):
        letters = pattern
        if not letters or set(letters) - {"L", "G"}:
            raise ModelError(
                f"{where}: sliding_window_pattern {pattern!r} is not a text of L and G"
            )
        last = config.num_hidden_layers - 1
        layers = typed_layers(
            config, where, window, lambda i: letters[i % len(letters)] == "L" and i != last
        )
    else:
        layers = typed_layers(config, where, window, all_but_last_of(pattern, where))
    return without_global_rotation(layers)


def without_global_rotation(layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Return the layers, those with full attention without rotary embedding."""
    return tuple(replace(layer, rotary=bool(layer.window)) for layer in layers)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    plain = _with_norms(gguf_decoder_spec(file, window_period=GGUF_WINDOW_PERIOD))
    if not any(layer.window for layer in plain.layers):
        return plain
    return replace(plain, layers=without_global_rotation(plain.layers))


def _with_norms(plain: DecoderSpec) -> DecoderSpec:
    return replace(plain, norms="post", qk_norm=True)


FAMILY = Family(
    hf=HfDecoder("exaone4", "Exaone4ForCausalLM", Config, spec, NAMES),
    gguf=GgufDecoder("exaone4", gguf_spec, keys=windows_of_each),
)
