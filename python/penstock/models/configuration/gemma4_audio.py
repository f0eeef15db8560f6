"""Reads the audio side of Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.media_config import token_name
from penstock.models.media.audio_processor import AudioProcessor
from penstock.models.media.gemma_audio import GemmaFeatures
from penstock.models.towers.gemma4_audio import ConformerSpec

_AUDIO, _START, _END = "<|audio|>", "<|audio>", "<audio|>"
_ROW_TOKEN: Final = 258_881


class AudioConfig(msgspec.Struct):
    """The keys of `audio_config`, with the defaults of transformers' Gemma4AudioConfig."""

    hidden_size: int = 1024
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    hidden_act: str = "silu"
    subsampling_conv_channels: tuple[int, int] = (128, 32)
    conv_kernel_size: int = 5
    residual_weight: float = 0.5
    attention_chunk_size: int = 12
    attention_context_left: int = 13
    attention_context_right: int = 0
    attention_logit_cap: float = 50.0
    use_clipped_linears: bool = True
    rms_norm_eps: float = 1e-6
    output_proj_dims: int = 1536

    def spec(self, outputs: int, where: str) -> ConformerSpec:
        """Return the spec of the tower. `outputs`: the width of the language model. Raises
        ModelError that starts with `where` and names the key at fault."""
        fixed = {
            "hidden_act": (self.hidden_act, "silu"),
            "residual_weight": (self.residual_weight, 0.5),
            "attention_context_right": (self.attention_context_right, 0),
            "rms_norm_eps": (self.rms_norm_eps, 1e-6),
        }
        for key, (value, expected) in fixed.items():
            if value != expected:
                raise ModelError(f"{where}: {key} must be {expected}, not {value!r}")
        spec = ConformerSpec(
            layers=self.num_hidden_layers,
            width=self.hidden_size,
            heads=self.num_attention_heads,
            channels=self.subsampling_conv_channels,
            kernel=self.conv_kernel_size,
            context=self.attention_context_left,
            chunk=self.attention_chunk_size,
            logit_cap=self.attention_logit_cap,
            inner=self.output_proj_dims,
            outputs=outputs,
            clipped=self.use_clipped_linears,
        )
        spec.check(where)
        return spec


def gemma4_audio(
    folder: Path, keys: Mapping[str, Any], outputs: int, where: str
) -> tuple[AudioProcessor, ConformerSpec] | None:
    """Return the processor and the tower of the model in `folder`; None if it reads no audio.
    `keys`: of its config.json, whose path is `where`. Raises ModelError."""
    given = keys.get("audio_config")
    if given is None:
        return None
    where = f"{where}: audio_config"
    try:
        spec = msgspec.convert(given, AudioConfig).spec(outputs, where)
        row_token = msgspec.convert(keys.get("audio_token_id", _ROW_TOKEN), int)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None
    processor = AudioProcessor(
        token_name(folder, "audio_token", _AUDIO),
        row_token,
        GemmaFeatures(spec.mels, spec.rows),
        before=token_name(folder, "boa_token", _START),
        after=token_name(folder, "eoa_token", _END),
    )
    return processor, spec
