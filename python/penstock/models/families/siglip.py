"""SigLIP, and SigLIP 2 with images of fixed size: embeds images by a tower whose patches are pooled
by attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import read_model_config
from penstock.models.configuration.vision_config import vision_of
from penstock.models.families.clip import IMAGE
from penstock.models.media.image_config import ImageConfig, read_image_config, square_or_sides
from penstock.models.media.image_processor import ImageProcessor, PlainRows
from penstock.models.media.tilings import SingleTile
from penstock.models.towers.image_embedder import ImageEmbedderSpec, ProbeHead
from penstock.models.towers.tower import MediaSpec

HEAD = ProbeHead("head.")
HEAD_ROOTS = ("vision_model.",)


class SiglipConfig(msgspec.Struct):
    """The keys of config.json."""

    vision_config: dict[str, Any] = {}


class SiglipImageConfig(ImageConfig):
    """The keys of the image processor, with the defaults of transformers' SiglipImageProcessor."""

    size: dict[str, int] | int | None = 224


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, _, where = read_model_config(folder, SiglipConfig)
    images = read_image_config(folder, SiglipImageConfig)
    keys = {"model_type": "siglip_vision_model", **config.vision_config}
    vision = vision_of(keys, where, ("",))
    if keys.get("vision_use_head") is False:
        raise ModelError(f"{where}: vision_use_head false is not supported")
    size = square_or_sides(images.size, "size", str(folder))
    if size != (vision.side, vision.side):
        raise ModelError(f"{folder}: size must be {vision.side}, the side of the tower's images")
    tower = ImageEmbedderSpec(
        vision.spec, vision.names, HEAD, HEAD_ROOTS, images.normalization(where), vision.patches
    )
    tiling = SingleTile(size, images.resample)
    return MediaSpec(ImageProcessor(IMAGE, 0, vision.patch, tiling, PlainRows()), (tower,))


FAMILY = Family(media=MediaFamily("SiglipModel", read_folder))
