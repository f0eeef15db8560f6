"""Requests for speech, and their answers."""

from __future__ import annotations

import msgspec


class TextToSpeechRequest(msgspec.Struct, frozen=True):
    """A text to speak.

    - `model`: None for the default model.
    - `voice`: a voice of the model; any other name selects its default voice.
    - `speed`: from MIN_SPEED to MAX_SPEED; 2 is twice as fast as 1.
    """

    text: str
    model: str | None = None
    voice: str = ""
    speed: float = 1.0


class SpeechPiece(msgspec.Struct, frozen=True):
    """The next part of the speech.

    - `audio`: signed 16-bit little-endian samples of one channel.
    - `sample_rate`: samples per second, equal for all pieces.
    """

    audio: bytes
    sample_rate: int
