"""Small media files of every supported format, and their damaged forms."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from io import BytesIO

import av
import numpy as np
import numpy.typing as npt
import soundfile
from PIL import Image

IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "AVIF")
AUDIO_FORMATS = (
    "wav_u8", "wav_s16", "wav_s24", "wav_s32", "wav_f32", "wav_f64", "wav_alaw", "wav_mulaw",
    "flac", "vorbis", "opus", "mp3", "m4a", "mov", "webm", "mkv",
)  # fmt: skip
VIDEO_FORMATS = ("h264", "h265", "mpeg4", "vp8", "vp9", "av1", "mkv", "gif", "webp", "apng")

_SOUND_FILES = {
    "wav_u8": ("WAV", "PCM_U8"),
    "wav_s16": ("WAV", "PCM_16"),
    "wav_s24": ("WAV", "PCM_24"),
    "wav_s32": ("WAV", "PCM_32"),
    "wav_f32": ("WAV", "FLOAT"),
    "wav_f64": ("WAV", "DOUBLE"),
    "wav_alaw": ("WAV", "ALAW"),
    "wav_mulaw": ("WAV", "ULAW"),
    "flac": ("FLAC", "PCM_16"),
    "vorbis": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}
_SOUND_CONTAINERS = {
    "m4a": ("ipod", "aac"),
    "mov": ("mov", "alac"),
    "webm": ("webm", "libopus"),
    "mkv": ("matroska", "aac"),
}
_VIDEO_CODECS = {
    "h264": ("mp4", "libx264", {}),
    "h265": ("mp4", "libx265", {"x265-params": "log-level=none"}),
    "mpeg4": ("mov", "mpeg4", {}),
    "vp8": ("webm", "libvpx", {}),
    "vp9": ("webm", "libvpx-vp9", {}),
    "av1": ("mp4", "libsvtav1", {"svtav1-params": "lp=1"}),
    "mkv": ("matroska", "libx264", {}),
}
_ANIMATIONS = {"gif": "GIF", "webp": "WEBP", "apng": "PNG"}


def picture(width: int = 32, height: int = 24) -> npt.NDArray[np.uint8]:
    """A smooth picture, which lossy formats keep: [height, width, 3]."""
    rows, columns = np.mgrid[0:height, 0:width]
    red, green = rows * 255 // max(height - 1, 1), columns * 255 // max(width - 1, 1)
    return np.stack([red, green, np.full_like(red, 90)], -1).astype(np.uint8)


def image_file(pixels: npt.NDArray[np.uint8] | Image.Image, name: str, **options: object) -> bytes:
    """Encode an image with Pillow."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def animation_file(frames: Sequence[npt.NDArray[np.uint8]], name: str, frame_ms: int) -> bytes:
    """Encode an animated image with Pillow."""
    first, *others = (Image.fromarray(frame) for frame in frames)
    file = BytesIO()
    lossless = {"lossless": True} if name == "WEBP" else {}
    first.save(file, name, save_all=True, append_images=others, duration=frame_ms, **lossless)
    return file.getvalue()


def tone(rate_hz: int, seconds: float, hz: float = 440.0) -> npt.NDArray[np.float32]:
    """A sine wave of amplitude 0.5."""
    times = np.arange(round(rate_hz * seconds)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * hz * times)).astype(np.float32)


def sound_file(
    samples: npt.NDArray[np.float32], rate_hz: int, name: str, channels: int = 1
) -> bytes:
    """Encode samples in one of AUDIO_FORMATS, with the same samples in every channel."""
    if name in _SOUND_FILES:
        container, subtype = _SOUND_FILES[name]
        file = BytesIO()
        both = np.repeat(samples[:, None], channels, 1)
        soundfile.write(file, both, rate_hz, format=container, subtype=subtype)
        return file.getvalue()
    container, codec = _SOUND_CONTAINERS[name]
    layout = "stereo" if channels == 2 else "mono"
    file = BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate_hz, layout=layout)
        stream.bit_rate = 192_000
        planes = np.repeat(samples[None], channels, 0)
        frame = av.AudioFrame.from_ndarray(planes, format="fltp", layout=layout)
        frame.rate = rate_hz
        for packet in (*stream.encode(frame), *stream.encode(None)):
            output.mux(packet)
    return file.getvalue()


def gray_frames(count: int, width: int = 32, height: int = 24) -> list[npt.NDArray[np.uint8]]:
    """Frames whose brightness is 4 times their index."""
    return [np.full((height, width, 3), 4 * index, np.uint8) for index in range(count)]


def video_file(
    frames: Sequence[npt.NDArray[np.uint8]], name: str, fps: int = 10, key_every: int = 250
) -> bytes:
    """Encode frames in one of VIDEO_FORMATS."""
    if name in _ANIMATIONS:
        return animation_file(frames, _ANIMATIONS[name], 1000 // fps)
    container, codec, options = _VIDEO_CODECS[name]
    file = BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=fps, options=dict(options))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.gop_size = key_every
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, fps)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def wav_head(num_samples: int, rate_hz: int = 16_000) -> bytes:
    """The head of a mono 16-bit WAV file that declares `num_samples`."""
    file = BytesIO()
    soundfile.write(file, np.zeros(1, np.float32), rate_hz, format="WAV", subtype="PCM_16")
    head = bytearray(file.getvalue()[:44])
    head[40:44] = (2 * num_samples).to_bytes(4, "little")
    head[4:8] = (2 * num_samples + 36).to_bytes(4, "little")
    return bytes(head)
