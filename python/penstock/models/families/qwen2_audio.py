"""Qwen2-Audio: Whisper's encoder over 30 s, the means of pairs of positions, and a linear layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.models.configuration.audio_config import AUDIO_ROOTS, audio_of
from penstock.models.configuration.audio_mmproj import read_audio_mmproj
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import (
    PROJECTOR_ROOTS,
    read_model_config,
    text_width,
    token_name,
)
from penstock.models.media.audio_processor import AudioProcessor, OneWindow
from penstock.models.towers.audio_spec import WhisperEncoderSpec
from penstock.models.towers.audio_tower import AudioTowerSpec
from penstock.models.towers.projector import ProjectorLayer, ProjectorSpec
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile

PLACEHOLDER: Final = "<|AUDIO|>"
ROW_TOKEN: Final = 151_646


class Config(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' Qwen2AudioConfig."""

    audio_config: dict[str, Any] = {}
    audio_token_index: int = ROW_TOKEN
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
    placeholder = token_name(folder, "audio_token", PLACEHOLDER)
    return _media(encoder, projector, placeholder, token)


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file. See MediaFamily."""
    read = read_audio_mmproj(file)
    width, inputs = read.matrix("mm.a.fc")
    projector = ProjectorSpec(PROJECTOR_ROOTS, inputs, (ProjectorLayer("linear", width),))
    projector.check(read.where)
    return read.media(_media(read.encoder, projector, PLACEHOLDER, ROW_TOKEN))


def _media(
    encoder: WhisperEncoderSpec, projector: ProjectorSpec, placeholder: str, row_token: int
) -> MediaSpec:
    processor = AudioProcessor(placeholder, row_token, OneWindow(encoder.mels, encoder.frames))
    return MediaSpec(processor, (AudioTowerSpec(encoder, AUDIO_ROOTS, projector, mean_pairs=True),))


FAMILY = Family(
    media=MediaFamily("Qwen2AudioForConditionalGeneration", read_folder, ("qwen2a",), read_mmproj)
)
