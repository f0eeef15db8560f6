"""The media processor of Qwen3-VL and Qwen3.5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.models.media.prepared import Frames, MediaKind, Pixels, PreparedMedia, Sound
from penstock.models.media.processor import Encode, Expansion, PlacedMedia
from penstock.models.media.qwen_pixels import IMAGE_PAD, VIDEO_PAD, FrameSampling, QwenPixels
from penstock.models.media.rope_index import Grid, grid_positions

VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"


@dataclass(frozen=True, slots=True)
class Qwen3VlProcessor:
    """Places the tokens of an image in one piece. Each group of frames of a video is a piece of its
    own, between a start and an end token, after a text with its time: "<0.5 seconds>"."""

    pixels: QwenPixels
    sampling: FrameSampling

    @property
    def placeholders(self) -> Mapping[MediaKind, str]:
        """See MediaProcessor. The start and end tokens of the chat template stay around a video,
        outside those of its groups, as in transformers since version 5."""
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
        return self.pixels.prepare_video(frames)

    def audio(self, sound: Sound) -> PreparedMedia:
        """See MediaProcessor."""
        raise AssertionError("the family takes no audio")

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        """See MediaProcessor."""
        return self.sampling.times(duration_s, num_frames)

    def expand(self, media: PreparedMedia, encode: Encode) -> Expansion:
        """See MediaProcessor."""
        _, rows, columns = self.pixels.tokens(media)
        count = rows * columns
        if media.kind == "image":
            (pad,) = encode(IMAGE_PAD)
            return Expansion((pad,) * count, ((0, count),))
        (start,), (pad,), (end,) = map(encode, (VISION_START, VIDEO_PAD, VISION_END))
        token_ids: list[int] = []
        runs: list[tuple[int, int]] = []
        for seconds in self._group_times(media):
            token_ids += (*encode(f"<{seconds:.1f} seconds>"), start)
            runs.append((len(token_ids), count))
            token_ids += (*(pad,) * count, end)
        return Expansion(tuple(token_ids), tuple(runs))

    def rope_positions(
        self, token_ids: Sequence[int], items: Sequence[PlacedMedia]
    ) -> npt.NDArray[np.int32] | None:
        """See MediaProcessor."""
        if not items:
            return None
        grids = [grid for item in items for grid in self._grids(item)]
        return grid_positions(len(token_ids), grids)

    def _group_times(self, media: PreparedMedia) -> Iterator[float]:
        """Return the seconds of each group: the mean of its first and its last frame."""
        each = self.pixels.frames_per_patch
        for first in range(0, len(media.timestamps), each):
            yield (media.timestamps[first] + media.timestamps[first + each - 1]) / 2

    def _grids(self, item: PlacedMedia) -> Iterator[Grid]:
        _, rows, columns = self.pixels.tokens(item.media)
        for first, _ in item.expansion.runs:
            yield Grid(item.start + first, (0,), rows, columns)
