"""CLIP: embeds images by a tower with a class token, and texts by a causal transformer whose last
token is the end token; both are projected to vectors of one space."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import read_model_config
from penstock.models.configuration.vision_config import vision_of
from penstock.models.families.llava import LlavaImageConfig, single_tile
from penstock.models.media.image_config import read_image_config
from penstock.models.media.image_processor import ImageProcessor, PlainRows
from penstock.models.towers.image_embedder import ClassHead, ImageEmbedderSpec
from penstock.models.towers.tower import MediaSpec

ROOTS: Final = ("",)
IMAGE: Final = "<image>"
"""The placeholder of an image in a text. A model that embeds images has no token for it."""


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


FAMILY = Family(media=MediaFamily("CLIPModel", read_folder))
