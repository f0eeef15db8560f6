"""Decodes audio with PyAV into mono samples at the rate of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.base.errors import InvalidRequest
from penstock.media.containers import AUDIO_CODECS, declared_duration_s, open_container
from penstock.media.formats import StreamFormat
from penstock.media.limits import MediaLimits
from penstock.media.resampling import Resampler, Samples
from penstock.models.media.prepared import Sound

if TYPE_CHECKING:
    from av import AudioFrame, AudioStream
    from av.container import InputContainer

MIN_RATE_HZ: Final = 1_000
MAX_RATE_HZ: Final = 384_000
MAX_CHANNELS: Final = 64
DAMAGED_PACKETS: Final = 2
DAMAGED_SHARE: Final = 0.05
"""Packets of a stream that may be unreadable: that number, or that share of all. Tags at the end
of an MP3 file look like damaged packets."""

# Name of a sample format without "p" for planar -> (offset, scale).
_SAMPLE_FORMATS: Final[Mapping[str, tuple[float, float]]] = {
    "u8": (128, 1 / 128),
    "s16": (0, 2.0**-15),
    "s32": (0, 2.0**-31),
    "s64": (0, 2.0**-63),
    "flt": (0, 1),
    "dbl": (0, 1),
}


def decode_audio(
    data: bytes, stream_format: StreamFormat, limits: MediaLimits, rate_hz: int
) -> Sound:
    """Return the first audio stream of a file, mixed to mono, at `rate_hz` samples per second.

    Raises InvalidRequest if it is too long, empty or has no finite numbers, and exceptions of PyAV
    if it is damaged.
    """
    with open_container("audio", data, stream_format) as container:
        stream = _audio_stream(container)
        source_hz = stream.rate
        if not MIN_RATE_HZ <= source_hz <= MAX_RATE_HZ:
            raise _invalid(f"the audio has {source_hz} samples per second")
        limits.check_duration("audio", declared_duration_s(container, stream))
        resampler = Resampler(source_hz, rate_hz) if source_hz != rate_hz else None
        parts: list[Samples] = []
        num_samples = 0
        for frame in _frames(container, stream):
            samples = _mono(frame, source_hz)
            num_samples += len(samples)
            limits.check_duration("audio", num_samples / source_hz)
            parts.append(samples if resampler is None else resampler.feed(samples))
    if not num_samples:
        raise _invalid("the audio is empty")
    if resampler is not None:
        parts.append(resampler.finish())
    return Sound(np.clip(np.concatenate(parts), -1, 1), rate_hz)


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_audio")


def _audio_stream(container: InputContainer) -> AudioStream:
    if not container.streams.audio:
        raise _invalid("the file has no audio")
    stream = container.streams.audio[0]
    if stream.codec_context.name not in AUDIO_CODECS:
        raise InvalidRequest(
            "the codec of the audio is not supported; use PCM, FLAC, MP3, AAC, Opus or Vorbis",
            code="unsupported_media_format",
        )
    stream.codec_context.thread_count = 1
    return stream


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """Decode the stream, without the few packets that may be damaged."""
    from av.error import InvalidDataError

    num_packets = num_damaged = 0
    for packet in container.demux(stream):
        num_packets += 1
        try:
            yield from packet.decode()
        except InvalidDataError:
            num_damaged += 1
    if num_damaged > max(DAMAGED_PACKETS, num_packets * DAMAGED_SHARE):
        raise _invalid("the audio is damaged")


def _mono(frame: AudioFrame, rate_hz: int) -> Samples:
    """Return the mean of the channels, -1 to 1."""
    channels = frame.layout.nb_channels
    if frame.sample_rate != rate_hz or not 1 <= channels <= MAX_CHANNELS:
        raise _invalid("the audio changes its sampling rate, or has too many channels")
    name = frame.format.name
    offset, scale = _SAMPLE_FORMATS[name.removesuffix("p")]
    values = frame.to_ndarray().astype(np.float64)
    if not frame.format.is_planar:
        values = values.reshape(-1, channels).T
    mono = values.mean(axis=0) if channels > 1 else values[0]
    samples: Samples = ((mono - offset) * scale).astype(np.float32)
    if not np.isfinite(samples).all():
        raise _invalid("the audio has samples that are not finite numbers")
    return samples
