"""Phi-4-multimodal as Microsoft publishes it: other keys and tensor names than in transformers'
class, and weights that also contain the adapters, which are read from their own folders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import read_model_config
from penstock.models.configuration.phi4_media import AudioConfig, VisionConfig
from penstock.models.families.phi4_multimodal import convert_keys, media_of
from penstock.models.towers.tower import MediaSpec

_PLACEHOLDERS: Final = ("<|endoftext10|>", "<|endoftext11|>")
_AUDIO_KEYS: Final = {
    "attention_dim": "hidden_size",
    "attention_heads": "num_attention_heads",
    "linear_units": "intermediate_size",
    "depthwise_seperable_out_channel": "depthwise_separable_out_channel",
}
"""Keys of the audio tower that have other names in transformers."""
_NAMES: Final = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\.base_layer\.", "."),
        (r"(\.feed_forward_(?:in|out))\.net\.0\.linear\.", r"\1.gate_up_proj."),
        (r"(\.feed_forward_(?:in|out))\.net\.2\.", r"\1.down_proj."),
        (r"(\.audio_embed\..*\.self_attn)\.linear_([qkv])\.", r"\1.\2_proj."),
        (r"(\.audio_embed\..*\.self_attn)\.linear_out\.", r"\1.o_proj."),
        (r"\.image_embed\.img_projection\.0\.", ".image_embed.img_projection_up."),
        (r"\.image_embed\.img_projection\.2\.", ".image_embed.img_projection_down."),
        (r"\.image_embed\.glb_GN$", ".image_embed.global_img_feature_extensor"),
        (r"\.image_embed\.sub_GN$", ".image_embed.sub_img_feature_extensor"),
        (r"\.audio_projection\.speech\.0\.", ".up_proj_for_speech."),
        (r"\.audio_projection\.speech\.2\.", ".down_proj_for_speech."),
        (r"\.audio_projection\.vision\.0\.", ".up_proj_for_vision_speech."),
        (r"\.audio_projection\.vision\.2\.", ".down_proj_for_vision_speech."),
    )
)
"""Patterns of tensor names -> the names in transformers."""


class _AudioProcessor(msgspec.Struct):
    config: dict[str, Any] = {}


class Config(msgspec.Struct):
    """The keys of config.json."""

    audio_processor: _AudioProcessor = msgspec.field(default_factory=_AudioProcessor)
    img_processor: dict[str, Any] | None = None
    embd_layer: dict[str, Any] = {}


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, _, where = read_model_config(folder, Config)
    given = config.audio_processor.config
    keys = {_AUDIO_KEYS.get(name, name): value for name, value in given.items()}
    keys["nemo_conv_channels"] = given.get("nemo_conv_settings", {}).get("conv_channels", 1024)
    bias = given.get("relative_attention_bias_args", {})
    keys["bias_max_distance"] = bias.get("t5_bias_max_distance", 1000)
    audio = convert_keys(keys, AudioConfig, f"{where}: audio_processor: config")
    vision = convert_keys(config.img_processor or {}, VisionConfig, f"{where}: img_processor")
    return media_of(folder, vision, audio, _PLACEHOLDERS)


def tensor_name(name: str) -> str | None:
    """Return the name of a tensor in transformers' class; None for a factor of an adapter."""
    if ".lora_" in name:
        return None
    for pattern, renamed in _NAMES:
        name = pattern.sub(renamed, name)
    return name


FAMILY = Family(media=MediaFamily("Phi4MMForCausalLM", read_folder, tensor_name=tensor_name))
