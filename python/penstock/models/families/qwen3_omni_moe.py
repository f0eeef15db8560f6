"""Qwen3-Omni: the thinker hears with convolutions and windows of attention. Its language model is a
Qwen3 mixture of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import read_model_config, token_name
from penstock.models.media.audio_processor import AudioProcessor, Unpadded
from penstock.models.towers.audio_spec import AudioLayersSpec
from penstock.models.towers.qwen3_omni_audio import ChunkedAudioSpec
from penstock.models.towers.tower import MediaSpec

_ROOTS: Final = ("thinker.audio_tower.", "thinker.model.audio_tower.")


class _Audio(msgspec.Struct):
    """The keys of `audio_config`, with the defaults of transformers."""

    num_mel_bins: int = 128
    encoder_layers: int = 32
    encoder_attention_heads: int = 20
    encoder_ffn_dim: int = 5120
    d_model: int = 1280
    activation_function: str = "gelu"
    n_window: int = 50
    output_dim: int = 3584
    n_window_infer: int = 800
    downsample_hidden_size: int = 480


class _Thinker(msgspec.Struct):
    audio_config: _Audio = msgspec.field(default_factory=_Audio)
    audio_token_id: int = 151_646


class Config(msgspec.Struct):
    """The keys of config.json."""

    thinker_config: _Thinker = msgspec.field(default_factory=_Thinker)


def read_folder(folder: Path) -> MediaSpec:
    """Read the audio side of a folder. See MediaFamily."""
    config, _, where = read_model_config(folder, Config)
    thinker = config.thinker_config
    tower = audio_tower(thinker.audio_config, f"{where}: thinker_config: audio_config")
    token = token_name(folder, "audio_token", "<|audio_pad|>")
    features = Unpadded(tower.mels, tower.rows)
    return MediaSpec(AudioProcessor(token, thinker.audio_token_id, features), (tower,))


def audio_tower(audio: _Audio, where: str) -> ChunkedAudioSpec:
    """Return the spec of the audio tower. Raises ModelError that starts with `where`."""
    if audio.activation_function != "gelu":
        raise ModelError(f"{where}: activation_function must be gelu")
    chunk = 2 * audio.n_window
    spec = ChunkedAudioSpec(
        body=AudioLayersSpec(
            audio.encoder_layers,
            audio.d_model,
            audio.encoder_attention_heads,
            audio.encoder_ffn_dim,
            key_bias=True,
        ),
        roots=_ROOTS,
        mels=audio.num_mel_bins,
        channels=audio.downsample_hidden_size,
        chunk=chunk,
        window_chunks=audio.n_window_infer // max(chunk, 1),
        outputs=audio.output_dim,
    )
    spec.check(where)
    return spec


FAMILY = Family(media=MediaFamily("Qwen3OmniMoeForConditionalGeneration", read_folder))
