"""Qwen3.5: its vision tower and media, which are those of Qwen3-VL without DeepStack."""

from __future__ import annotations

from pathlib import Path

from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.qwen_vl import read_qwen_media, vision_keys
from penstock.models.families import qwen3_vl
from penstock.models.towers.tower import MediaSpec


class Keys(qwen3_vl.Keys):
    """The keys of `vision_config`."""

    deepstack_visual_indexes: tuple[int, ...] = ()


def read_folder(folder: Path) -> MediaSpec:
    """See MediaFamily."""
    keys, where = vision_keys(folder, Keys)
    media = read_qwen_media(folder, keys, qwen3_vl.DEFAULTS)
    return qwen3_vl.qwen3_media(keys, where, media)


FAMILY = Family(media=MediaFamily("Qwen3_5ForConditionalGeneration", read_folder))
