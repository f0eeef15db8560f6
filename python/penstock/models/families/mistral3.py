"""Mistral 3 (Mistral Small 3.1): Pixtral, whose patches are normalized and merged by squares before
two linear layers. Each line of rows ends with a token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.image_mmproj import read_pixtral
from penstock.models.configuration.media_config import (
    PROJECTOR_ROOTS,
    TOWER_ROOTS,
    activation_of,
    read_model_config,
    text_number,
    text_width,
    two_layers,
)
from penstock.models.configuration.mmproj import size
from penstock.models.configuration.vision_config import select_layers, vision_of
from penstock.models.families.llava import LlavaConfig
from penstock.models.media.image_config import BICUBIC, read_image_config
from penstock.models.media.pixtral_tiling import (
    LineRows,
    PixtralConfig,
    PixtralTiling,
    pixtral_processor,
)
from penstock.models.towers.image_tower import ImageTowerSpec
from penstock.models.towers.projector import ProjectorLayer, ProjectorSpec
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile

TEXT_EPS: Final = 1e-5
"""The norm eps of the published language models, which `mmproj` files lack."""


class Mistral3Config(LlavaConfig):
    """The keys of config.json, with the defaults of transformers' Mistral3Config."""

    vision_feature_layer: int | list[int] = -1
    multimodal_projector_bias: bool = False
    spatial_merge_size: int = 2

    @property
    def image_token(self) -> int:
        """The id of the token of an image row."""
        given = self.image_token_index if self.image_token_id is None else self.image_token_id
        return 10 if given is None else given


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, where = read_model_config(folder, Mistral3Config)
    images = read_image_config(folder, PixtralConfig)
    vision = vision_of(config.vision_config, where, TOWER_ROOTS)
    merge = config.spatial_merge_size
    if vision.spec.class_token:
        raise ModelError(f"{where}: vision_config: towers with a class token are not supported")
    spec, features = select_layers(vision, config.vision_feature_layer, where)
    if len(features) > 1:
        raise ModelError(f"{where}: vision_feature_layer must be one layer")
    width = text_width(keys, where)
    activation = activation_of(config.projector_hidden_act, where)
    projector = ProjectorSpec(
        PROJECTOR_ROOTS,
        spec.hidden_size,
        (
            ProjectorLayer("patch_merger.merging_layer", spec.hidden_size, bias=False),
            *two_layers(width, width, activation, biased=config.multimodal_projector_bias),
        ),
        merge=merge,
        reduction="channels",
        norm="rms",
        norm_name="norm",
        norm_of="patches",
        norm_eps=text_number(keys, "rms_norm_eps", where),
    )
    longest = images.longest_edge(str(folder))
    tower = ImageTowerSpec(
        spec,
        vision.names,
        projector,
        images.normalization(where),
        (longest // vision.patch + merge) ** 2,
        scheme=vision.scheme,
        rope=vision.rope,
    )
    tower.check(where)
    processor = pixtral_processor(folder, images, config.image_token, vision.patch, merge)
    return MediaSpec(processor, (tower,))


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file of Pixtral, or of Mistral 3, which merges patches.
    See MediaFamily."""
    read = read_pixtral(file)
    merge = size(file, "spatial_merge_size", 1)
    layers = (read.layer("mm.1", "gelu"), read.layer("mm.2"))
    projector = ProjectorSpec(("",), read.spec.hidden_size, layers)
    if merge > 1:
        projector = replace(
            projector,
            layers=(read.layer("mm.patch_merger"), *layers),
            merge=merge,
            reduction="channels",
            norm="rms",
            norm_name="mm.input_norm",
            norm_of="patches",
            norm_eps=TEXT_EPS,
        )
    longest, patch = read.sizes.image, read.sizes.patch
    tiling = PixtralTiling(longest, patch * merge, BICUBIC)
    marking = LineRows(merge, "[IMG_BREAK]", "[IMG_END]")
    return read.media(projector, "[IMG]", tiling, marking, (longest // patch + merge) ** 2)


FAMILY = Family(
    media=MediaFamily("Mistral3ForConditionalGeneration", read_folder, ("pixtral",), read_mmproj)
)
