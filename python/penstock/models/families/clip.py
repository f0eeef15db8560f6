"""CLIP: embeds images by a tower with a class token, and texts by a causal transformer whose last
token is the end token; both are projected to vectors of one space."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, HfEncoder, MediaFamily
from penstock.models.configuration.media_config import read_model_config
from penstock.models.configuration.text_towers import (
    TEXT_TOWER_NAMES,
    read_text_config,
    text_encoder_spec,
)
from penstock.models.configuration.vision_config import vision_of
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.text_tower import TextTower
from penstock.models.families.llava import LlavaImageConfig, single_tile
from penstock.models.media.image_config import read_image_config
from penstock.models.media.image_processor import ImageProcessor, PlainRows
from penstock.models.towers.image_embedder import ClassHead, ImageEmbedderSpec
from penstock.models.towers.tower import MediaSpec

ROOTS: Final = ("",)
IMAGE: Final = "<image>"
"""The placeholder of an image in a text. A model that embeds images has no token for it."""
_TEXT: Final = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "vocab_size": 49_408,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
"""The defaults of transformers' CLIPTextConfig."""


class ClipConfig(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' CLIPConfig."""

    vision_config: dict[str, Any] = {}
    projection_dim: int = 512


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, _, where = read_model_config(folder, ClipConfig)
    return clip_media(folder, config.vision_config, config.projection_dim, where)


def clip_media(folder: Path, config: dict[str, Any], width: int, where: str) -> MediaSpec:
    """Return the media side of a folder. `config`: the keys of the vision tower. `width`: the
    elements of an embedding."""
    images = read_image_config(folder, LlavaImageConfig)
    vision = vision_of({"model_type": "clip_vision_model", **config}, where, ROOTS)
    tiling = single_tile(images, str(folder))
    if tiling.crop != (vision.side, vision.side) and tiling.size != (vision.side, vision.side):
        raise ModelError(
            f"{folder}: crop_size must be {vision.side}, the side of the tower's images"
        )
    head = ClassHead("vision_model.post_layernorm", "visual_projection", width)
    tower = ImageEmbedderSpec(
        vision.spec, vision.names, head, ROOTS, images.normalization(where), vision.patches
    )
    return MediaSpec(ImageProcessor(IMAGE, 0, vision.patch, tiling, PlainRows()), (tower,))


def text_spec(path: Path) -> EncoderSpec:
    """Read the spec of the text tower from a config.json. Raises ModelError naming the key at
    fault."""
    return text_encoder_spec(path, read_text_config(path, _TEXT), causal=True)


def text_tower(path: Path) -> TextTower:
    """Read the projection of texts from a config.json."""
    config, _, _ = read_model_config(path.parent, ClipConfig)
    return TextTower(
        "text_projection", config.projection_dim, biased=False, end_token="<|endoftext|>"
    )


FAMILY = Family(
    hf=HfEncoder("clip", "CLIPModel", text_spec, TEXT_TOWER_NAMES, text_tower=text_tower),
    media=MediaFamily("CLIPModel", read_folder),
)
