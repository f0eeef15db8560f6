"""Mistral 3 (Mistral Small 3.1): Pixtral, whose patches are normalized and merged by squares before
two linear layers. Each line of rows ends with a token."""

from __future__ import annotations

from pathlib import Path

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import (
    PROJECTOR_ROOTS,
    TOWER_ROOTS,
    activation_of,
    read_model_config,
    text_number,
    text_width,
    two_layers,
)
from penstock.models.configuration.vision_config import select_layers, vision_of
from penstock.models.families.llava import LlavaConfig
from penstock.models.media.image_config import read_image_config
from penstock.models.media.pixtral_tiling import PixtralConfig, pixtral_processor
from penstock.models.towers.image_tower import ImageTowerSpec
from penstock.models.towers.projector import ProjectorLayer, ProjectorSpec
from penstock.models.towers.tower import MediaSpec


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


FAMILY = Family(media=MediaFamily("Mistral3ForConditionalGeneration", read_folder))
