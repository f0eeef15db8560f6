"""Gemma 3n: four parallel residual streams, inputs per layer, caches that several layers read, and
an audio tower. Its image tower is not supported."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder, MediaFamily
from penstock.models.configuration.gemma3n_text import (
    Gemma3nTextConfig,
    gguf_text_spec,
    text_spec,
)
from penstock.models.configuration.gemma_text import ALTUP_NAMES, GGUF_ALTUP_NAMES
from penstock.models.configuration.media_config import read_model_config, token_name
from penstock.models.media.audio_processor import AudioProcessor
from penstock.models.media.gemma3n_audio import Gemma3nFeatures
from penstock.models.towers.conformer_layer import ConformerSizes
from penstock.models.towers.gemma3n_audio import Gemma3nAudioSpec
from penstock.models.towers.tower import MediaSpec

_TAPS: Final = ((3, 3), (3, 3))
_STRIDES: Final = ((2, 2), (2, 2))


class AudioConfig(msgspec.Struct):
    """The keys of `audio_config`, with the defaults of transformers' Gemma3nAudioConfig."""

    vocab_size: int = 128
    input_feat_size: int = 128
    hidden_size: int = 1536
    rms_norm_eps: float = 1e-6
    conf_attention_chunk_size: int = 12
    conf_attention_context_left: int = 13
    conf_attention_context_right: int = 0
    conf_attention_logit_cap: float = 50.0
    conf_num_attention_heads: int = 8
    conf_num_hidden_layers: int = 12
    conf_conv_kernel_size: int = 5
    conf_reduction_factor: int = 4
    conf_residual_weight: float = 0.5
    sscp_conv_channel_size: tuple[int, int] = (128, 32)
    sscp_conv_group_norm_eps: float = 1e-3
    sscp_conv_kernel_size: tuple[tuple[int, int], tuple[int, int]] = _TAPS
    sscp_conv_stride_size: tuple[tuple[int, int], tuple[int, int]] = _STRIDES

    def spec(self, tokens: int, outputs: int, where: str) -> Gemma3nAudioSpec:
        """Return the spec of the tower. Raises ModelError that starts with `where` and names the
        key at fault."""
        fixed = {
            "rms_norm_eps": 1e-6,
            "conf_attention_context_right": 0,
            "conf_residual_weight": 0.5,
            "sscp_conv_kernel_size": _TAPS,
            "sscp_conv_stride_size": _STRIDES,
        }
        for key, expected in fixed.items():
            if getattr(self, key) != expected:
                raise ModelError(f"{where}: {key} must be {expected}, not {getattr(self, key)!r}")
        sizes = ConformerSizes(
            width=self.hidden_size,
            heads=self.conf_num_attention_heads,
            kernel=self.conf_conv_kernel_size,
            context=self.conf_attention_context_left,
            visible=self.conf_attention_context_left,
            chunk=self.conf_attention_chunk_size,
            logit_cap=self.conf_attention_logit_cap,
            key_scale=1.0,
            clipped=False,
        )
        spec = Gemma3nAudioSpec(
            layers=self.conf_num_hidden_layers,
            sizes=sizes,
            mels=self.input_feat_size,
            channels=self.sscp_conv_channel_size,
            norm_eps=self.sscp_conv_group_norm_eps,
            reduction=self.conf_reduction_factor,
            tokens=tokens,
            vocab=self.vocab_size,
            outputs=outputs,
        )
        spec.check(where)
        return spec


class TextConfig(msgspec.Struct):
    """The keys of `text_config` that the tower needs."""

    hidden_size: int = 2048


class Config(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' Gemma3nConfig."""

    text_config: TextConfig = msgspec.field(default_factory=TextConfig)
    audio_config: dict[str, Any] = {}
    audio_soft_tokens_per_image: int = 188
    audio_token_id: int = 262_273


def read_folder(folder: Path) -> MediaSpec:
    """Read the audio side of a folder. See MediaFamily."""
    config, _, path = read_model_config(folder, Config)
    where = f"{path}: audio_config"
    try:
        audio = msgspec.convert(config.audio_config, AudioConfig)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None
    tokens = config.audio_soft_tokens_per_image
    spec = audio.spec(tokens, config.text_config.hidden_size, where)
    start = token_name(folder, "boa_token", "<start_of_audio>")
    end = token_name(folder, "eoa_token", "<end_of_audio>")
    processor = AudioProcessor(
        token_name(folder, "audio_token", "<audio_soft_token>"),
        config.audio_token_id,
        Gemma3nFeatures(spec.mels, tokens),
        before=f"\n\n{start}",
        after=f"{end}\n\n",
    )
    return MediaSpec(processor, (spec,))


FAMILY = Family(
    hf=HfDecoder(
        "gemma3n",
        "Gemma3nForCausalLM",
        Gemma3nTextConfig,
        text_spec,
        ALTUP_NAMES,
        model_type="gemma3n_text",
        headless="Gemma3nTextModel",
        is_reranker=False,
    ),
    gguf=GgufDecoder("gemma3n", gguf_text_spec, GGUF_ALTUP_NAMES, is_written=False),
    media=MediaFamily("Gemma3nForConditionalGeneration", read_folder),
)
