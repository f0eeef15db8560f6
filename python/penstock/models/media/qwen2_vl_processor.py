"""The media processor of Qwen2-VL and Qwen2.5-VL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.models.media.prepared import Frames, MediaKind, Pixels, PreparedMedia, Sound
from penstock.models.media.processor import Encode, Expansion, PlacedMedia
from penstock.models.media.qwen_pixels import IMAGE_PAD, VIDEO_PAD, FrameSampling, QwenPixels
from penstock.models.media.rope_index import Grid, grid_positions

MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Qwen2VlProcessor:
    """Places one token per image or group of frames and cell of the merged grid.

    - `tokens_per_second`: the positions of time that a second of a video takes (Qwen2.5-VL); 0: one
      per group of frames (Qwen2-VL).

    The fourth number of a video's layout is the microseconds between two groups of frames.
    """

    pixels: QwenPixels
    sampling: FrameSampling
    tokens_per_second: int = 0

    @property
    def placeholders(self) -> Mapping[MediaKind, str]:
        """See MediaProcessor."""
        return {"image": IMAGE_PAD, "video": VIDEO_PAD}

    @property
    def sampling_rate(self) -> int:
        """See MediaProcessor."""
        return 0

    def image(self, pixels: Pixels) -> PreparedMedia:
        """See MediaProcessor."""
        return self.pixels.prepare_image(pixels)

    def video(self, frames: Frames) -> PreparedMedia:
        """See MediaProcessor."""
        seconds = frames.duration_s / max(len(frames.pixels), 1) * self.pixels.frames_per_patch
        return self.pixels.prepare_video(frames, round(seconds * MICROSECONDS))

    def audio(self, sound: Sound) -> PreparedMedia:
        """See MediaProcessor."""
        raise AssertionError("the family takes no audio")

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        """See MediaProcessor."""
        return self.sampling.times(duration_s, num_frames)

    def expand(self, media: PreparedMedia, encode: Encode) -> Expansion:
        """See MediaProcessor."""
        groups, rows, columns = self.pixels.tokens(media)
        count = groups * rows * columns
        (pad,) = encode(self.placeholders[media.kind])
        return Expansion((pad,) * count, ((0, count),))

    def rope_positions(
        self, token_ids: Sequence[int], items: Sequence[PlacedMedia]
    ) -> npt.NDArray[np.int32] | None:
        """See MediaProcessor."""
        if not items:
            return None
        grids = [self._grid(item) for item in items]
        return grid_positions(len(token_ids), grids)

    def _grid(self, item: PlacedMedia) -> Grid:
        groups, rows, columns = self.pixels.tokens(item.media)
        times = range(groups)
        if item.media.kind == "video" and self.tokens_per_second:
            interval = item.media.layout[3] * self.tokens_per_second
            return Grid(
                item.start, tuple(t * interval // MICROSECONDS for t in times), rows, columns
            )
        return Grid(item.start, tuple(times), rows, columns)
