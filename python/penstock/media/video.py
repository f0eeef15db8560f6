"""Decodes the sampled frames of a video with PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import InvalidRequest
from penstock.media.containers import VIDEO_CODECS, declared_duration_s, open_container
from penstock.media.formats import StreamFormat
from penstock.media.limits import MediaLimits
from penstock.media.sampling import FrameTimes, frame_size, sampled_frames
from penstock.models.media.prepared import Frames, Pixels

if TYPE_CHECKING:
    from av import VideoFrame, VideoStream
    from av.container import InputContainer

MAX_FRAME_RATE: Final = 240
"""A video may have this number of frames for each second of the longest allowed duration."""


@dataclass(frozen=True, slots=True)
class _Index:
    """The frames of a video, from its packets: `pts` and `keys` (of key frames) in ascending order,
    in units of `unit_s` seconds."""

    pts: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    unit_s: float
    end: int

    @property
    def starts_s(self) -> npt.NDArray[np.float64]:
        starts: npt.NDArray[np.float64] = (self.pts - self.pts[0]) * self.unit_s
        return starts

    @property
    def duration_s(self) -> float:
        return float((self.end - self.pts[0]) * self.unit_s)


def decode_video(
    data: bytes, stream_format: StreamFormat, limits: MediaLimits, frame_times: FrameTimes
) -> Frames:
    """Return the sampled frames of the first video stream of a file, turned as a player shows them.

    Only the frames that are sampled are kept, and only the groups of pictures that have them are
    decoded. Raises InvalidRequest if the video is too large or too long, and exceptions of PyAV if
    it is damaged.
    """
    with open_container("video", data, stream_format) as container:
        stream = _video_stream(container, limits)
        index = _read_index(container, stream, limits)
        starts_s = index.starts_s
        indices = sampled_frames(starts_s, index.duration_s, frame_times, limits)
        size = frame_size(stream.width, stream.height, len(indices), limits)
        frames = _FrameReader(container, stream, index, size, limits)
        first = frames.at(int(index.pts[indices[0]]))
        pixels = np.empty((len(indices), *first.shape), np.uint8)
        pixels[0] = first
        for row in range(1, len(indices)):
            if indices[row] == indices[row - 1]:
                pixels[row] = pixels[row - 1]
            else:
                pixels[row] = frames.at(int(index.pts[indices[row]]))
    return Frames(pixels, tuple(starts_s[indices].tolist()), index.duration_s)


def _video_stream(container: InputContainer, limits: MediaLimits) -> VideoStream:
    if not container.streams.video:
        raise InvalidRequest("the file has no video", code="invalid_video")
    stream = container.streams.video[0]
    if stream.codec_context.name not in VIDEO_CODECS:
        raise InvalidRequest(
            "the codec of the video is not supported; use H.264, H.265, VP8, VP9, AV1 or MPEG-4",
            code="unsupported_media_format",
        )
    stream.codec_context.thread_count = 1
    stream.codec_context.thread_type = "NONE"
    limits.check_size("video", stream.width, stream.height)
    limits.check_duration("video", declared_duration_s(container, stream))
    return stream


def _read_index(container: InputContainer, stream: VideoStream, limits: MediaLimits) -> _Index:
    """Read all packets without decoding them: many files do not declare their duration or number of
    frames."""
    unit_s = float(stream.time_base or 0)
    pts, keys, end = [], [], 0
    for packet in container.demux(stream):
        if packet.pts is None or packet.is_discard:
            continue
        pts.append(packet.pts)
        end = max(end, packet.pts + max(packet.duration or 0, 1))
        if packet.is_keyframe:
            keys.append(packet.pts)
        if len(pts) > limits.max_duration_s * MAX_FRAME_RATE:
            raise InvalidRequest("the video has too many frames", code="media_too_large")
    if not pts or not keys:
        raise InvalidRequest("the video has no frames", code="invalid_video")
    index = _Index(np.unique(pts), np.unique(keys), unit_s, end)
    limits.check_duration("video", index.duration_s)
    return index


class _FrameReader:
    """Decodes frames in ascending order of time."""

    def __init__(
        self,
        container: InputContainer,
        stream: VideoStream,
        index: _Index,
        size: tuple[int, int],
        limits: MediaLimits,
    ) -> None:
        from av.video.reformatter import VideoReformatter

        self._container = container
        self._stream = stream
        self._index = index
        self._size = size
        self._limits = limits
        self._reformatter = VideoReformatter()
        self._frame: VideoFrame | None = None
        self._position = 0
        self._frames: Iterator[VideoFrame] = iter(())
        self._seek(int(index.pts[0]))

    def at(self, pts: int) -> Pixels:
        """Return the frame at `pts`, or the next one if the packet of `pts` shows none; at the end,
        the last one."""
        keys = self._index.keys
        key = int(keys[max(0, np.searchsorted(keys, pts, "right") - 1)])
        if key > self._position:
            self._seek(key)
        while self._position < pts and (frame := next(self._frames, None)) is not None:
            if frame.pts is not None:
                self._frame, self._position = frame, frame.pts
        if self._frame is None:
            raise InvalidRequest("the video has no frames", code="invalid_video")
        return self._pixels(self._frame)

    def _seek(self, pts: int) -> None:
        self._container.seek(pts, stream=self._stream)
        self._frames = self._container.decode(self._stream)
        self._frame = None
        self._position = pts - 1

    def _pixels(self, frame: VideoFrame) -> Pixels:
        self._limits.check_size("video", frame.width, frame.height)
        width, height = self._size
        # A thread cannot be started in a sealed process.
        scaled = self._reformatter.reformat(frame, width, height, "rgb24", threads=1)
        array = scaled.to_ndarray()
        return np.rot90(array, frame.rotation // 90)
