"""Qwen2-Audio: Whisper's encoder over 30 s, the means of pairs of positions, and a linear layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.models.configuration.audio_config import AUDIO_ROOTS, audio_of
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import (
    PROJECTOR_ROOTS,
    read_model_config,
    text_width,
    token_name,
)
from penstock.models.media.audio_processor import AudioProcessor, OneWindow
from penstock.models.towers.audio_tower import AudioTowerSpec
from penstock.models.towers.projector import ProjectorLayer, ProjectorSpec
from penstock.models.towers.tower import MediaSpec


class Config(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' Qwen2AudioConfig."""

    audio_config: dict[str, Any] = {}
    audio_token_index: int = 151_646
    audio_token_id: int | None = None


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, where = read_model_config(folder, Config)
    encoder = audio_of(config.audio_config, where)
    projector = ProjectorSpec(
        PROJECTOR_ROOTS,
        encoder.body.width,
        (ProjectorLayer("linear", text_width(keys, where)),),
    )
    projector.check(where)
    token = config.audio_token_index if config.audio_token_id is None else config.audio_token_id
    processor = AudioProcessor(
        token_name(folder, "audio_token", "<|AUDIO|>"),
        token,
        OneWindow(encoder.mels, encoder.frames),
    )
    return MediaSpec(processor, (AudioTowerSpec(encoder, AUDIO_ROOTS, projector, mean_pairs=True),))


FAMILY = Family(media=MediaFamily("Qwen2AudioForConditionalGeneration", read_folder))
