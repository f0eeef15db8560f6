"""SigLIP 2 with images of any proportions ("NaFlex"): positions are interpolated to the patches of
an image, whose number is limited."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, HfEncoder, MediaFamily
from penstock.models.configuration.media_config import read_model_config
from penstock.models.configuration.text_towers import TEXT_TOWER_NAMES
from penstock.models.configuration.vision_config import vision_of
from penstock.models.encoder.text_tower import PaddedTexts, TextTower
from penstock.models.families.clip import IMAGE
from penstock.models.families.siglip import (
    HEAD,
    HEAD_ROOTS,
    SiglipConfig,
    projection_width,
    text_spec,
)
from penstock.models.media.image_config import BILINEAR, ImageConfig, read_image_config
from penstock.models.media.image_processor import ImageProcessor, PlainRows
from penstock.models.media.images import Size, resize
from penstock.models.media.prepared import Pixels
from penstock.models.towers.image_embedder import ImageEmbedderSpec
from penstock.models.towers.tower import MediaSpec

_PRECISION = 1e-5
_LARGEST_SCALE = 100.0


class Siglip2ImageConfig(ImageConfig):
    """The keys of the image processor, with the defaults of transformers' Siglip2ImageProcessor."""

    resample: int = BILINEAR
    patch_size: int = 16
    max_num_patches: int = 256


@dataclass(frozen=True, slots=True)
class LimitedPatches:
    """An image is stretched to whole patches, as many as fit `most`, with nearly the same
    proportions."""

    patch: int
    most: int
    resampling: int

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """See Tiling."""
        low, high = _PRECISION / 10, _LARGEST_SCALE
        while high - low >= _PRECISION:  # the search of transformers, for the same rounding
            middle = (low + high) / 2
            height, width = self._scaled(pixels, middle)
            fits = height / self.patch * (width / self.patch) <= self.most
            low, high = (middle, high) if fits else (low, middle)
        return [resize(pixels, self._scaled(pixels, low), self.resampling)], ()

    def _scaled(self, pixels: Pixels, scale: float) -> Size:
        height, width = (
            max(self.patch, math.ceil(edge * scale / self.patch) * self.patch)
            for edge in pixels.shape[:2]
        )
        return height, width


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, _, where = read_model_config(folder, SiglipConfig)
    images = read_image_config(folder, Siglip2ImageConfig)
    keys = {"model_type": "siglip2_vision_model", **config.vision_config}
    vision = vision_of(keys, where, ("",))
    if images.patch_size != vision.patch or not 1 <= images.max_num_patches <= 1 << 16:
        raise ModelError(
            f"{folder}: patch_size must be {vision.patch} and max_num_patches positive, not"
            f" {images.patch_size} and {images.max_num_patches}"
        )
    tower = ImageEmbedderSpec(
        vision.spec,
        vision.names,
        HEAD,
        HEAD_ROOTS,
        images.normalization(where),
        images.max_num_patches,
        scheme=vision.scheme,
    )
    tiling = LimitedPatches(vision.patch, images.max_num_patches, images.resample)
    return MediaSpec(ImageProcessor(IMAGE, 0, vision.patch, tiling, PlainRows()), (tower,))


def text_tower(path: Path) -> TextTower:
    """Read the projection of texts from a config.json. Texts are lowercased, as in training."""
    return TextTower(
        "text_model.head",
        projection_width(path),
        biased=True,
        form="lower case",
        padding=PaddedTexts("<pad>", "left"),
    )


FAMILY = Family(
    hf=HfEncoder("siglip2", "Siglip2Model", text_spec, TEXT_TOWER_NAMES, text_tower=text_tower),
    media=MediaFamily("Siglip2Model", read_folder),
)
