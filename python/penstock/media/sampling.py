"""Selects the frames of a video that a model sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.base.errors import InvalidRequest
from penstock.media.limits import MediaLimits

FrameTimes: TypeAlias = Callable[[float, int], Sequence[float]]
"""`MediaProcessor.frame_times`."""

IMAGES_PER_VIDEO: Final = 2
"""All sampled frames together may have as many pixels as this number of images. Larger frames are
scaled down."""


def sampled_frames(
    starts: npt.NDArray[np.float64],
    duration_s: float,
    frame_times: FrameTimes,
    limits: MediaLimits,
) -> list[int]:
    """Return the indices of the frames to decode, in ascending order; an index may occur twice.

    - `starts`: seconds at which the frames are shown, ascending.

    For each time that the processor asks for, the frame nearest to it is taken. If these are more
    than `limits.max_frames`, frames at even distances among them are taken.
    """
    times = np.asarray(frame_times(duration_s, len(starts)), np.float64)
    if not times.size:
        raise InvalidRequest("the video is too short", code="invalid_video")
    if len(times) > limits.max_frames:
        kept = np.linspace(0, len(times) - 1, limits.max_frames).round().astype(np.int64)
        times = times[kept]
    after = np.searchsorted(starts, times).clip(0, len(starts) - 1)
    before = (after - 1).clip(0)
    nearer_before = times - starts[before] < starts[after] - times
    return sorted(np.where(nearer_before, before, after).tolist())


def frame_size(width: int, height: int, num_frames: int, limits: MediaLimits) -> tuple[int, int]:
    """Return the width and height in which frames are kept, so that all of them fit the memory."""
    most = limits.max_pixels * IMAGES_PER_VIDEO / num_frames
    if width * height <= most:
        return width, height
    scale = (most / (width * height)) ** 0.5
    return max(1, int(width * scale)), max(1, int(height * scale))
