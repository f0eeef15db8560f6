"""LLaVA: the patches of CLIP, SigLIP or Pixtral, projected by two linear layers. One tile per
image; with Pixtral, images keep their proportions and each line of patches ends with a token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.image_mmproj import MmprojImages, read_images
from penstock.models.configuration.media_config import (
    PROJECTOR_ROOTS,
    TOWER_ROOTS,
    activation_of,
    read_model_config,
    text_width,
    token_name,
    two_layers,
)
from penstock.models.configuration.vision_config import HfVision, select_layers, vision_of
from penstock.models.media.image_config import (
    BICUBIC,
    CLIP_MEAN,
    CLIP_STD,
    Channels,
    ImageConfig,
    edge_of,
    read_image_config,
    square_or_sides,
)
from penstock.models.media.image_processor import ImageProcessor, PlainRows
from penstock.models.media.pixtral_tiling import PixtralConfig, pixtral_processor
from penstock.models.media.tiles import Normalization
from penstock.models.media.tilings import SingleTile
from penstock.models.towers.image_tower import ImageTowerSpec
from penstock.models.towers.projector import ProjectorSpec
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile


class LlavaConfig(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' LlavaConfig."""

    vision_config: dict[str, Any]
    image_token_index: int | None = None
    image_token_id: int | None = None
    projector_hidden_act: str = "gelu"
    vision_feature_select_strategy: str = "default"
    vision_feature_layer: int | list[int] = -2
    multimodal_projector_bias: bool = True

    @property
    def image_token(self) -> int:
        """The id of the token of an image row."""
        given = self.image_token_index if self.image_token_id is None else self.image_token_id
        return 32_000 if given is None else given


class LlavaImageConfig(ImageConfig):
    """The keys of the image processor, with the defaults of transformers' LlavaImageProcessor."""

    size: dict[str, int] | int | None = msgspec.field(
        default_factory=lambda: {"shortest_edge": 224}
    )
    crop_size: dict[str, int] | int | None = 224
    do_center_crop: bool | None = True
    do_pad: bool | None = False
    image_mean: Channels | float = CLIP_MEAN
    image_std: Channels | float = CLIP_STD
    resample: int = BICUBIC


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, where = read_model_config(folder, LlavaConfig)
    vision = vision_of(config.vision_config, where, TOWER_ROOTS)
    if vision.rope is not None:
        pixtral = read_image_config(folder, PixtralConfig)
        processor = pixtral_processor(folder, pixtral, config.image_token, vision.patch, 1)
        normalization = pixtral.normalization(str(folder))
        side = pixtral.longest_edge(str(folder))
        tower = llava_tower(config, keys, where, vision, normalization, side // vision.patch)
        return MediaSpec(processor, (tower,))
    images = read_image_config(folder, LlavaImageConfig)
    tower = llava_tower(
        config, keys, where, vision, images.normalization(where), vision.side // vision.patch
    )
    single = single_tile(images, str(folder))
    check_tile(single, vision, str(folder))
    extra = int(tower.keeps_class_token)
    token = token_name(folder, "image_token", "<image>")
    rows = PlainRows(more=extra)
    return MediaSpec(
        ImageProcessor(token, config.image_token, vision.patch, single, rows), (tower,)
    )


def llava_tower(
    config: LlavaConfig,
    keys: Mapping[str, Any],
    where: str,
    vision: HfVision,
    normalization: Normalization,
    longest: int,
) -> ImageTowerSpec:
    """Return the tower of a model of this family or of one that has the same tower and projector.
    `longest`: the most patches on a side of a tile."""
    spec, features = select_layers(vision, config.vision_feature_layer, where)
    if config.vision_feature_select_strategy not in ("default", "full"):
        raise ModelError(f"{where}: vision_feature_select_strategy must be default or full")
    keeps_first = config.vision_feature_select_strategy == "full"
    if not keeps_first and not spec.class_token:
        raise ModelError(
            f"{where}: vision_feature_select_strategy default needs a tower with a class token"
        )
    width = text_width(keys, where)
    activation = activation_of(config.projector_hidden_act, where)
    projector = ProjectorSpec(
        PROJECTOR_ROOTS,
        spec.hidden_size * len(features),
        two_layers(width, width, activation, biased=config.multimodal_projector_bias),
    )
    tower = ImageTowerSpec(
        spec,
        vision.names,
        projector,
        normalization,
        longest**2,
        scheme=vision.scheme,
        rope=vision.rope,
        features=features,
        keeps_class_token=keeps_first and spec.class_token,
    )
    tower.check(where)
    return tower


def single_tile(images: LlavaImageConfig, where: str) -> SingleTile:
    """Return how an image is brought to the size of the tower."""
    if isinstance(images.size, dict) and "shortest_edge" in images.size:
        size: Any = edge_of(images.size, "shortest_edge", "size", where)
    else:
        size = square_or_sides(images.size, "size", where)
    crop = square_or_sides(images.crop_size, "crop_size", where) if images.do_center_crop else None
    if crop is None and isinstance(size, int):
        raise ModelError(f"{where}: size must have height and width if do_center_crop is false")
    background = None
    if images.do_pad:
        mean = images.normalization(where).mean
        background = (int(mean[0] * 255), int(mean[1] * 255), int(mean[2] * 255))
    return SingleTile(size, images.resample, crop, background)


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file: CLIP without its last layer, whose patches are
    projected without their class token. See MediaFamily."""
    read = read_images(file)
    side = read.sizes.image
    images = LlavaImageConfig(size={"shortest_edge": side}, crop_size=side)
    tiling = single_tile(images, read.where)
    return read.media(mmproj_projector(read), MMPROJ_IMAGE, tiling, PlainRows(), read.grid**2)


def mmproj_projector(read: MmprojImages) -> ProjectorSpec:
    """Return the projector of an `mmproj` file."""
    layers = read.layer("mm.0", "gelu"), read.layer("mm.2")
    return ProjectorSpec(("",), read.spec.hidden_size, layers)


def check_tile(tiling: SingleTile, vision: HfVision, where: str) -> None:
    """Check that images get the size that the tower has positions for. Raises ModelError."""
    size = tiling.size if tiling.crop is None else tiling.crop
    if vision.scheme == "fixed" and size != (vision.side, vision.side):
        raise ModelError(
            f"{where}: images of {size} pixels (height, width) do not fit the tower, whose images"
            f" have {vision.side} by {vision.side}"
        )


MMPROJ_IMAGE = "<image>"
"""The placeholder of an image for `mmproj` files, which do not name it."""

FAMILY = Family(media=MediaFamily("LlavaForConditionalGeneration", read_folder))
