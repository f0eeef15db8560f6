"""Ultravox: Whisper's encoder, adjacent positions that become one row, and a gated projector with
norms. Its language model is a Llama or another supported family."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.audio_config import AUDIO_ROOTS, audio_of
from penstock.models.configuration.audio_mmproj import AudioMmproj, read_audio_mmproj
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import (
    PROJECTOR_ROOTS,
    read_model_config,
    text_width,
)
from penstock.models.media.audio_processor import AudioProcessor, StackedWindows
from penstock.models.towers.audio_spec import WhisperEncoderSpec
from penstock.models.towers.audio_tower import AudioTowerSpec
from penstock.models.towers.projector import ProjectorLayer, ProjectorSpec
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile

PLACEHOLDER: Final = "<|audio|>"
ROW_TOKEN: Final = 0
"""The token of a row. Its own embedding is never used."""
_EPS: Final = 1e-6


class Config(msgspec.Struct):
    """The keys of config.json, with the defaults of Ultravox's published configuration."""

    audio_config: dict[str, Any] | None = None
    audio_model_id: str | None = None
    text_config: dict[str, Any] | None = None
    text_model_id: str | None = None
    hidden_size: int = 4096
    stack_factor: int = 8
    projector_act: str = "swiglu"
    projector_ln_mid: bool = False
    audio_latency_block_size: int | None = None


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, where = read_model_config(folder, Config)
    for part in ("audio", "text"):
        other = getattr(config, f"{part}_model_id")
        if getattr(config, f"{part}_config") is None:
            raise ModelError(
                f"{where}: {part}_config is missing; {part}_model_id is {other!r}, and a folder"
                " must have all weights of the model"
            )
    if config.projector_act != "swiglu" or config.audio_latency_block_size is not None:
        raise ModelError(
            f"{where}: projector_act must be swiglu and audio_latency_block_size null, not"
            f" {config.projector_act!r} and {config.audio_latency_block_size}"
        )
    encoder = audio_of(config.audio_config or {}, where)
    projector = ultravox_projector(
        PROJECTOR_ROOTS,
        encoder.body.width * config.stack_factor,
        config.hidden_size,
        text_width(keys, where),
        is_middle=config.projector_ln_mid,
    )
    return ultravox_media(encoder, AUDIO_ROOTS, projector, config.stack_factor, where)


def ultravox_projector(
    roots: tuple[str, ...], inputs: int, inner: int, width: int, *, is_middle: bool
) -> ProjectorSpec:
    """Return the projector. `is_middle`: the second norm is before the last layer, not after."""
    return ProjectorSpec(
        roots,
        inputs,
        (
            ProjectorLayer(
                "linear_1",
                inner,
                bias=False,
                activation="silu_mul",
                gate_last=True,
                norm_name="ln_mid" if is_middle else "",
            ),
            ProjectorLayer("linear_2", width, bias=False, norm_name="" if is_middle else "ln_post"),
        ),
        norm="rms",
        norm_name="ln_pre",
        norm_eps=_EPS,
    )


def ultravox_media(
    encoder: WhisperEncoderSpec,
    roots: tuple[str, ...],
    projector: ProjectorSpec,
    stack: int,
    where: str,
) -> MediaSpec:
    """Return the media side. Raises ModelError that starts with `where`."""
    if stack < 1:
        raise ModelError(f"{where}: stack_factor must be positive, not {stack}")
    projector.check(where)
    features = StackedWindows(encoder.mels, encoder.frames, 2 * stack)
    processor = AudioProcessor(PLACEHOLDER, ROW_TOKEN, features)
    return MediaSpec(processor, (AudioTowerSpec(encoder, roots, projector, stack=stack),))


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file. See MediaFamily."""
    read: AudioMmproj = read_audio_mmproj(file)
    stack = read.stack()
    inner, inputs = read.matrix("mm.a.mlp.1")
    width, _ = read.matrix("mm.a.mlp.2")
    projector = ultravox_projector(
        PROJECTOR_ROOTS,
        inputs,
        inner,
        width,
        is_middle="mm.a.norm_mid.weight" in file.tensors,
    )
    return read.media(ultravox_media(read.encoder, AUDIO_ROOTS, projector, stack, read.where))


FAMILY = Family(media=MediaFamily("UltravoxModel", read_folder, ("ultravox",), read_mmproj))
