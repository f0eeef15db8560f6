"""Speech: `POST /v1/audio/speech`."""

from __future__ import annotations

import struct
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.schema import speech as s
from penstock.dialog import TextToSpeechRequest
from penstock.dialog.ranges import MAX_SPEED, MIN_SPEED

AudioFormat: TypeAlias = Literal["wav", "pcm"]

CHANNELS: Final = 1
SAMPLE_BYTES: Final = 2
PCM_TAG: Final = 1
# The length of a WAV file that ends with its stream, as ffmpeg and sox write it.
UNKNOWN_BYTES: Final = 0xFFFFFFFF


class DecodedSpeech(msgspec.Struct, frozen=True):
    """A decoded body. `format`: the format of the audio in the answer."""

    request: TextToSpeechRequest
    format: AudioFormat
    stream: ClassVar[bool] = True


def decode(body: bytes) -> DecodedSpeech:
    """Decode a speech request. Raises InvalidRequest, which names the wrong field."""
    asked = decode_body(body, s.SpeechRequest)
    request = TextToSpeechRequest(
        text=asked.input,
        model=asked.model or None,
        voice=_voice(asked.voice),
        speed=_speed(asked.speed),
    )
    return DecodedSpeech(request, asked.response_format or "wav")


def content_type(form: AudioFormat, sample_rate: int) -> bytes:
    """Return the Content-Type of audio."""
    facts = f"rate={sample_rate}; channels={CHANNELS}"
    match form:
        case "wav":
            return f"audio/wav; {facts}".encode()
        case "pcm":
            return f"audio/pcm; codecs=1; format=s16le; {facts}".encode()


def audio_head(form: AudioFormat, sample_rate: int) -> bytes:
    """Return the bytes before the samples: the header of a WAV file of unknown length, or
    nothing."""
    if form == "pcm":
        return b""
    frame = CHANNELS * SAMPLE_BYTES
    shape = struct.pack(
        "<IHHIIHH", 16, PCM_TAG, CHANNELS, sample_rate, frame * sample_rate, frame, 8 * SAMPLE_BYTES
    )
    sizes = struct.pack("<I", UNKNOWN_BYTES)
    return b"RIFF" + sizes + b"WAVEfmt " + shape + b"data" + sizes


def _voice(given: Any) -> str:
    """Return the name of a voice, which OpenAI's clients send as a string or as `{"id": name}`."""
    if isinstance(given, dict):
        given = given.get("id")
    return given if isinstance(given, str) else ""


def _speed(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return 1.0
    return min(max(float(given), MIN_SPEED), MAX_SPEED)
