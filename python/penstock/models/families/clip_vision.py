"""The image tower of CLIP, saved without the text tower."""

from __future__ import annotations

from pathlib import Path

from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import read_model_config
from penstock.models.families.clip import ClipConfig, clip_media
from penstock.models.towers.tower import MediaSpec


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder, whose config.json has the tower's keys at the top level."""
    config, keys, where = read_model_config(folder, ClipConfig)
    return clip_media(folder, keys, config.projection_dim, where)


FAMILY = Family(media=MediaFamily("CLIPVisionModelWithProjection", read_folder))
