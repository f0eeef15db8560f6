"""Prepares the pixels of images and videos for the vision towers of the Qwen-VL models, which take
patches of two frames and merge 2 x 2 patches into a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock.base.errors import InvalidRequest
from penstock.models.media.prepared import Frames, Pixels, PreparedMedia
from penstock.models.media.resize import PixelRange, check_aspect_ratio, fit_pixels, resize

IMAGE_PAD = "<|image_pad|>"
VIDEO_PAD = "<|video_pad|>"
DEFAULT_FPS = 2.0


@dataclass(frozen=True, slots=True)
class FrameSampling:
    """The rule that chooses the frames of a video.

    - `fps`: frames per second of the video.
    - `least`, `greatest`: bounds of their number.
    - `spread`: "starts": the first frame of each of equal parts of the video, an even number of
      them; "ends": the first and the last frame and frames at equal distances between them.
    """

    fps: float
    least: int
    greatest: int
    spread: Literal["starts", "ends"]

    def times(self, duration_s: float, num_frames: int) -> tuple[float, ...]:
        """Return the seconds of the chosen frames in a video with `num_frames` frames."""
        if num_frames < 2 or duration_s <= 0:
            return (0.0,) * min(num_frames, 1)
        wanted = max(duration_s * self.fps, self.least)
        if self.spread == "starts":
            even = min(self.greatest, num_frames) // 2 * 2
            count = max(int(min(wanted, even)) // 2 * 2, 2)
            indices = np.arange(count) * (num_frames / count)
        else:
            count = min(int(wanted), self.greatest, num_frames)
            indices = np.linspace(0, num_frames - 1, count).round()
        return tuple(float(index) for index in indices.astype(int) * (duration_s / num_frames))


@dataclass(frozen=True, slots=True)
class QwenPixels:
    """The sizes of images and frames.

    - `patch`, `merge`, `frames_per_patch`: pixels of a side of a patch, patches of a side of a
      token, and frames of a patch.
    - `image`: the allowed pixels of an image.
    - `video`: the allowed pixels of a frame, or with `per_video` of all frames together.
    """

    patch: int
    merge: int
    frames_per_patch: int
    image: PixelRange
    video: PixelRange
    video_budget: Literal["frame", "video"]

    def prepare_image(self, pixels: Pixels) -> PreparedMedia:
        """Return the resized image: [1, height, width, 3], layout (1, rows, columns) of patches.
        Raises InvalidRequest if it is much longer than wide."""
        height, width = pixels.shape[:2]
        check_aspect_ratio(height, width)
        size = fit_pixels(height, width, self._unit, self.image)
        return PreparedMedia.of("image", resize(pixels, *size)[None], self._layout(1, *size))

    def prepare_video(self, frames: Frames, *facts: int) -> PreparedMedia:
        """Return the resized frames: [N, height, width, 3], layout (groups, rows, columns) of
        patches and `facts`. The last frame is repeated until all groups are full. Raises
        InvalidRequest for frames that are much longer than wide."""
        pixels, timestamps = frames.pixels, frames.timestamps
        if not len(pixels):
            raise InvalidRequest("the video has no frames", code="invalid_video")
        lacking = -len(pixels) % self.frames_per_patch
        if len(pixels) == 1:  # a pair of frames shares the pixels
            pixels, lacking = np.repeat(pixels, self.frames_per_patch, axis=0), 0
            timestamps = timestamps * self.frames_per_patch
        size = self._frame_size(*pixels.shape[:3])
        resized = [resize(frame, *size) for frame in pixels]
        resized += resized[-1:] * lacking
        layout = self._layout(len(resized) // self.frames_per_patch, *size)
        times = timestamps + timestamps[-1:] * lacking
        return PreparedMedia.of("video", np.stack(resized), (*layout, *facts), times)

    def tokens(self, media: PreparedMedia) -> tuple[int, int, int]:
        """Return the groups, rows and columns of an item's tokens."""
        groups, rows, columns = media.layout[:3]
        return groups, rows // self.merge, columns // self.merge

    def _frame_size(self, count: int, height: int, width: int) -> tuple[int, int]:
        unit = self._unit
        if self.video_budget == "frame":
            check_aspect_ratio(height, width)
            return fit_pixels(height, width, unit, self.video)
        if min(height, width) < unit:
            enlarge = max(unit / height, unit / width)
            height, width = int(height * enlarge), int(width * enlarge)
        check_aspect_ratio(height, width)
        return fit_pixels(height, width, unit, self.video, count)

    @property
    def _unit(self) -> int:
        return self.patch * self.merge

    def _layout(self, groups: int, height: int, width: int) -> tuple[int, int, int]:
        return groups, height // self.patch, width // self.patch
