"""The processor of requests without a model: it returns what was decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.models.media.prepared import Frames, MediaKind, Pixels, PreparedMedia, Sound
from penstock.models.media.processor import Encode, Expansion, PlacedMedia


@dataclass(frozen=True, slots=True)
class PlainProcessor:
    """Prepares pixels as [height, width, 3], frames as [N, height, width, 3], and samples as [N].

    - `video_fps`: sampled frames per second of a video.
    """

    sampling_rate: int = 16_000
    video_fps: float = 2.0
    placeholders: Mapping[MediaKind, str] = field(
        default_factory=lambda: {
            "image": "<image>",
            "audio": "<audio>",
            "video": "<video>",
        }
    )

    def image(self, pixels: Pixels) -> PreparedMedia:
        return PreparedMedia.of("image", pixels)

    def video(self, frames: Frames) -> PreparedMedia:
        return PreparedMedia.of("video", frames.pixels, timestamps=frames.timestamps)

    def audio(self, sound: Sound) -> PreparedMedia:
        return PreparedMedia.of("audio", sound.samples)

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        count = min(num_frames, max(1, round(duration_s * self.video_fps)))
        times: list[float] = (np.arange(count) / self.video_fps).tolist()
        return times

    def expand(self, media: PreparedMedia, encode: Encode) -> Expansion:
        token_ids = tuple(encode(self.placeholders[media.kind]))
        return Expansion(token_ids, ((0, len(token_ids)),))

    def rope_positions(
        self, token_ids: Sequence[int], items: Sequence[PlacedMedia]
    ) -> npt.NDArray[np.int32] | None:
        return None
