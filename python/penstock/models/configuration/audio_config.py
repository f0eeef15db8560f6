"""Reads the keys of Whisper-like audio encoders in multimodal config.json files."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.towers.audio_spec import AudioLayersSpec, WhisperEncoderSpec

AUDIO_ROOTS: Final = ("model.audio_tower.", "audio_tower.")
"""The prefixes of an audio tower's tensors. Older checkpoints lack `model.`."""


class HfAudio(msgspec.Struct):
    """The keys of `audio_config`, with the defaults of Qwen2-Audio and Voxtral. Configs name the
    sizes in the one or the other way."""

    num_mel_bins: int = 128
    max_source_positions: int = 1500
    activation_function: str = "gelu"
    scale_embedding: bool = False
    d_model: int | None = None
    hidden_size: int | None = None
    encoder_layers: int | None = None
    num_hidden_layers: int | None = None
    encoder_attention_heads: int | None = None
    num_attention_heads: int | None = None
    encoder_ffn_dim: int | None = None
    intermediate_size: int | None = None

    def spec(self, where: str) -> WhisperEncoderSpec:
        """Return the spec of the encoder. Raises ModelError that starts with `where`."""
        if self.activation_function != "gelu" or self.scale_embedding:
            raise ModelError(
                f"{where}: audio_config: activation_function must be gelu and scale_embedding"
                f" false, not {self.activation_function!r} and {self.scale_embedding}"
            )
        body = AudioLayersSpec(
            layers=self.encoder_layers or self.num_hidden_layers or 32,
            width=self.d_model or self.hidden_size or 1280,
            heads=self.encoder_attention_heads or self.num_attention_heads or 20,
            intermediate=self.encoder_ffn_dim or self.intermediate_size or 5120,
        )
        spec = WhisperEncoderSpec(body, self.num_mel_bins, self.max_source_positions)
        spec.check(f"{where}: audio_config")
        return spec


def audio_of(config: dict[str, Any], where: str) -> WhisperEncoderSpec:
    """Return the spec of the encoder that `audio_config` describes. Raises ModelError."""
    try:
        return msgspec.convert(config, HfAudio).spec(where)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: audio_config: {error}") from None
