"""Voxtral: Whisper's encoder over windows of 30 s, of which four positions become one row, and two
linear layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.audio_config import AUDIO_ROOTS, audio_of
from penstock.models.configuration.audio_mmproj import read_audio_mmproj
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import (
    PROJECTOR_ROOTS,
    activation_of,
    read_model_config,
    text_width,
    token_name,
    two_layers,
)
from penstock.models.media.audio_processor import AudioProcessor, WholeWindows
from penstock.models.towers.audio_spec import WhisperEncoderSpec
from penstock.models.towers.audio_tower import AudioTowerSpec
from penstock.models.towers.projector import ProjectorSpec
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile

PLACEHOLDER: Final = "[AUDIO]"
ROW_TOKEN: Final = 24
_START: Final = "[BEGIN_AUDIO]"


class Config(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' VoxtralConfig."""

    audio_config: dict[str, Any] = {}
    audio_token_id: int | None = None
    projector_hidden_act: str = "gelu"


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, where = read_model_config(folder, Config)
    encoder = audio_of(config.audio_config, where)
    body = encoder.body
    stack, odd = divmod(body.intermediate, body.width)
    if odd or encoder.positions % stack:
        raise ModelError(
            f"{where}: audio_config: intermediate_size {body.intermediate} must be a multiple of"
            f" hidden_size {body.width} that divides the {encoder.positions} positions"
        )
    width = text_width(keys, where)
    activation = activation_of(config.projector_hidden_act, where)
    projector = ProjectorSpec(
        PROJECTOR_ROOTS, body.intermediate, two_layers(width, width, activation, biased=False)
    )
    projector.check(where)
    token = ROW_TOKEN if config.audio_token_id is None else config.audio_token_id
    processor = AudioProcessor(
        token_name(folder, "audio_token", PLACEHOLDER), token, _windows(encoder, stack)
    )
    return MediaSpec(processor, (AudioTowerSpec(encoder, AUDIO_ROOTS, projector, stack=stack),))


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file. See MediaFamily. The chat templates of GGUF files
    write no recordings, so the token before them is a part of the placeholder."""
    read = read_audio_mmproj(file)
    stack, encoder = read.stack(), read.encoder
    if encoder.positions % stack:
        raise ModelError(
            f"{read.where}: clip.audio.projector.stack_factor {stack} must divide the"
            f" {encoder.positions} positions"
        )
    inner, inputs = read.matrix("mm.a.mlp.1")
    width, _ = read.matrix("mm.a.mlp.2")
    layers = two_layers(inner, width, "gelu", biased=False)
    projector = ProjectorSpec(PROJECTOR_ROOTS, inputs, layers)
    projector.check(read.where)
    processor = AudioProcessor(
        _START + PLACEHOLDER, ROW_TOKEN, _windows(encoder, stack), before=_START
    )
    tower = AudioTowerSpec(encoder, AUDIO_ROOTS, projector, stack=stack)
    return read.media(MediaSpec(processor, (tower,)))


def _windows(encoder: WhisperEncoderSpec, stack: int) -> WholeWindows:
    return WholeWindows(encoder.mels, encoder.frames, encoder.positions // stack)


FAMILY = Family(
    media=MediaFamily("VoxtralForConditionalGeneration", read_folder, ("voxtral",), read_mmproj)
)
