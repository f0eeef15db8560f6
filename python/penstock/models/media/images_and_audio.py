"""The media processor of models that read images and audio: one processor for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.models.media.prepared import Frames, MediaKind, Pixels, PreparedMedia, Sound
from penstock.models.media.processor import Encode, Expansion, MediaProcessor, PlacedMedia


@dataclass(frozen=True, slots=True)
class ImagesAndAudio:
    """A `MediaProcessor` over two. `images`: for images and videos, and for positions."""

    images: MediaProcessor
    recordings: MediaProcessor

    @property
    def placeholders(self) -> Mapping[MediaKind, str]:
        """See MediaProcessor."""
        return {**self.images.placeholders, **self.recordings.placeholders}

    @property
    def sampling_rate(self) -> int:
        """See MediaProcessor."""
        return self.recordings.sampling_rate

    def image(self, pixels: Pixels) -> PreparedMedia:
        """See MediaProcessor."""
        return self.images.image(pixels)

    def video(self, frames: Frames) -> PreparedMedia:
        """See MediaProcessor."""
        return self.images.video(frames)

    def audio(self, sound: Sound) -> PreparedMedia:
        """See MediaProcessor."""
        return self.recordings.audio(sound)

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        """See MediaProcessor."""
        return self.images.frame_times(duration_s, num_frames)

    def expand(self, media: PreparedMedia, encode: Encode) -> Expansion:
        """See MediaProcessor."""
        own = self.recordings if media.kind == "audio" else self.images
        return own.expand(media, encode)

    def rope_positions(
        self, token_ids: Sequence[int], items: Sequence[PlacedMedia]
    ) -> npt.NDArray[np.int32] | None:
        """See MediaProcessor."""
        return self.images.rope_positions(token_ids, items)
