"""Times of the frames that are sampled from a video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class UniformFrames:
    """At most `most` frames at equal distances, from the first frame to the last.

    `rate`: the most frames per second; 0: no limit.
    """

    most: int
    rate: float

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        """See VideoSampling."""
        count = min(self.most, num_frames)
        if self.rate:
            count = min(count, round(self.rate * duration_s))
        places = np.linspace(0, max(num_frames - 1, 0), max(count, 1)).astype(np.int64)
        return [float(place) * duration_s / max(num_frames, 1) for place in np.unique(places)]


@dataclass(frozen=True, slots=True)
class MiddleFrames:
    """At most `most` frames, each in the middle of one of as many equal parts of the video."""

    most: int

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        """See VideoSampling."""
        count = max(min(self.most, num_frames), 1)
        step = num_frames / count
        places = [int(step / 2 + step * number) for number in range(count)]
        return [place * duration_s / max(num_frames, 1) for place in places]
