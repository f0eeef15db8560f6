"""Limits of the media in requests."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.config import MediaSettings
from penstock.models.media.prepared import MediaKind

MAX_SIDE: Final = 32_768
"""Maximum width and height of images, in pixels."""
BYTES_PER_PIXEL: Final = 24
"""Memory of a pixel while an image is decoded, converted and resized."""
BYTES_PER_SECOND: Final = 256 * 1024
"""Memory of a second of audio: samples and features."""
BASE_MEMORY_BYTES: Final = 512 * 1024**2
BASE_TIME_S: Final = 20
PIXELS_PER_CPU_SECOND: Final = 5_000_000
MEDIA_SECONDS_PER_CPU_SECOND: Final = 60
"""Speeds, far below those of decoders, from which the limits of CPU time follow."""


class MediaLimits(msgspec.Struct, frozen=True):
    """The limits of one item.

    - `max_pixels`: pixels of an image, and of a frame of a video.
    - `max_frames`: sampled frames of a video.
    - `max_duration_s`: seconds of audio and video.
    - `max_bytes`: size of the encoded item.
    - `processes`: number of decoding processes.
    """

    max_pixels: int = MediaSettings().max_image_pixels
    max_frames: int = MediaSettings().max_video_frames
    max_duration_s: float = MediaSettings().max_media_duration_s
    max_bytes: int = MediaSettings().max_media_bytes
    processes: int = MediaSettings().media_processes

    @classmethod
    def of(cls, settings: MediaSettings) -> MediaLimits:
        """Return the limits that the operator set."""
        return cls(
            settings.max_image_pixels,
            settings.max_video_frames,
            settings.max_media_duration_s,
            settings.max_media_bytes,
            settings.media_processes,
        )

    @property
    def memory_bytes(self) -> int:
        """Address space for decoding one item, beside that of an idle decoding process."""
        return int(
            BASE_MEMORY_BYTES
            + self.max_pixels * BYTES_PER_PIXEL
            + self.max_duration_s * BYTES_PER_SECOND
            + self.max_bytes * 4
        )

    def cpu_time_s(self, kind: MediaKind) -> int:
        """Return the CPU time limit for one item."""
        if kind == "image":
            return BASE_TIME_S + self.max_pixels // PIXELS_PER_CPU_SECOND
        return BASE_TIME_S + int(self.max_duration_s / MEDIA_SECONDS_PER_CPU_SECOND)

    def check_size(self, kind: MediaKind, width: int, height: int) -> None:
        """Raise InvalidRequest if an image or frame has too many pixels, or none."""
        if width < 1 or height < 1:
            raise InvalidRequest(f"the {kind} has no pixels", code=f"invalid_{kind}")
        if max(width, height) > MAX_SIDE:
            raise InvalidRequest(
                f"the {kind} has {width} x {height} pixels; no side may have more than {MAX_SIDE}",
                code="media_too_large",
            )
        if width * height > self.max_pixels:
            raise InvalidRequest(
                f"the {kind} has {width} x {height} pixels; at most {self.max_pixels} pixels are"
                " allowed",
                code="media_too_large",
            )

    def check_duration(self, kind: MediaKind, duration_s: float) -> None:
        """Raise InvalidRequest if audio or video is too long."""
        if duration_s > self.max_duration_s:
            raise InvalidRequest(
                f"the {kind} is longer than {self.max_duration_s:g} seconds", code="media_too_large"
            )
