"""Uses every decoder and the processor once, before a decoding process gives up its rights.

Libraries import modules and open files at their first use, which a sealed process cannot do.
"""

from __future__ import annotations

import codecs
import contextlib
import struct
import warnings
from io import BytesIO
from typing import Final

import numpy as np

from penstock.base.errors import InvalidRequest
from penstock.media import audio, containers, images, video
from penstock.media.formats import ImageFormat, StreamFormat
from penstock.media.limits import MediaLimits
from penstock.models.media.prepared import Frames, MediaKind, Sound
from penstock.models.media.processor import MediaProcessor

_ENCODINGS: Final = ("ascii", "latin_1", "utf_8", "utf_16", "utf_16_le", "utf_16_be", "cp1252")
"""Codecs of texts in media."""
_SIDE: Final = 64
_RATE_HZ: Final = 8_000


def rehearse(processor: MediaProcessor) -> None:
    """Import everything that decoding and preparing media needs."""
    warnings.simplefilter("ignore")  # a warning would look for source files
    images.load_plugins()
    containers.load_libraries()
    for encoding in _ENCODINGS:
        codecs.lookup(encoding)
    limits = MediaLimits()
    for image_format in images.supported_formats():
        sample = _image(image_format)
        images.decode_image(sample, image_format, limits)
        images.decode_animation(sample, image_format, limits, _all_times)
    video.decode_video(_video(), StreamFormat.MP4, limits, _all_times)
    audio.decode_audio(_wav(), StreamFormat.WAV, limits, 2 * _RATE_HZ)
    for kind in processor.placeholders:
        with contextlib.suppress(InvalidRequest):  # some processors refuse small images
            _prepare(processor, kind)


def _prepare(processor: MediaProcessor, kind: MediaKind) -> None:
    pixels = np.full((1, _SIDE, _SIDE, 3), 128, np.uint8)
    match kind:
        case "image":
            processor.image(pixels[0])
        case "video":
            processor.frame_times(1.0, 1)
            processor.video(Frames(pixels, (0.0,), 1.0))
        case "audio":
            rate_hz = processor.sampling_rate
            processor.audio(Sound(np.zeros(rate_hz, np.float32), rate_hz))


def _all_times(duration_s: float, num_frames: int) -> list[float]:
    times: list[float] = np.linspace(0, duration_s, num_frames).tolist()
    return times


def _image(image_format: ImageFormat) -> bytes:
    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (_SIDE, _SIDE)).save(file, image_format.name)
    return file.getvalue()


def _video() -> bytes:
    import av

    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width = stream.height = _SIDE
        stream.codec_context.thread_count = 1
        picture = np.zeros((_SIDE, _SIDE, 3), np.uint8)
        for _ in range(3):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame.reformat(format="yuv420p", threads=1)))
        container.mux(stream.encode(None))
    return file.getvalue()


def _wav() -> bytes:
    samples = bytes(2 * _RATE_HZ)
    head = struct.pack("<4sI4s4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16)
    kind = struct.pack("<HHIIHH", 1, 1, _RATE_HZ, 2 * _RATE_HZ, 2, 16)
    return head + kind + struct.pack("<4sI", b"data", len(samples)) + samples
