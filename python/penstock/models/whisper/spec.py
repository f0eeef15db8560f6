"""The configuration of a Whisper model and the numbers of its special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.models.decoder.spec_limits import (
    MAX_CONTEXT,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    check_sizes,
)
from penstock.models.towers.audio_spec import WhisperEncoderSpec

WINDOW_S: Final = 30.0
"""Seconds of a window, the longest recording that the encoder takes."""
TIMESTAMP_S: Final = 0.02
"""Seconds between two timestamp tokens."""
ENGLISH_ONLY_VOCAB: Final = 51_864
"""The vocabulary size of models that know no language but English."""


@dataclass(frozen=True, slots=True)
class WhisperTokens:
    """The token ids that control Whisper.

    - `start`: starts a transcript, before the language and the task.
    - `end`: ends a transcript. All ids below it are text.
    - `previous`: starts the text before a window.
    - `first_timestamp`: the timestamp of 0 s. All ids from it on are timestamps.
    - `languages`: language code -> token; empty for a model that knows only English.
    - `suppressed`: never sampled.
    - `suppressed_first`: not sampled as the first token of a transcript.
    """

    start: int
    end: int
    transcribe: int
    translate: int
    previous: int
    no_speech: int
    no_timestamps: int
    languages: Mapping[str, int]
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()

    @property
    def first_timestamp(self) -> int:
        return self.no_timestamps + 1

    def opening(self, language: str | None, task: int) -> tuple[int, ...]:
        """Return the tokens that start a transcript with timestamps. `language`: ignored by a model
        that knows only English, else one of `languages`."""
        if not self.languages:
            return (self.start,)
        assert language is not None
        return self.start, self.languages[language], task


@dataclass(frozen=True, slots=True)
class WhisperSpec:
    """The configuration of a Whisper model.

    - `max_tokens`: rows of the decoder's position table, the context length.
    """

    encoder: WhisperEncoderSpec
    layers: int
    heads: int
    intermediate: int
    vocab_size: int
    max_tokens: int
    tokens: WhisperTokens

    @property
    def width(self) -> int:
        return self.encoder.body.width

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where` and names the field."""
        self.encoder.check(where)
        limits = {
            "decoder_layers": (self.layers, MAX_LAYERS),
            "decoder_attention_heads": (self.heads, self.width),
            "decoder_ffn_dim": (self.intermediate, MAX_WIDTH),
            "vocab_size": (self.vocab_size, MAX_VOCAB),
            "max_target_positions": (self.max_tokens, MAX_CONTEXT),
        }
        check_sizes(where, limits)
