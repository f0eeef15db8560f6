"""SmolVLM: Idefics 3 with videos, whose frames are single tiles after their times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import read_model_config
from penstock.models.configuration.vision_config import vision_of
from penstock.models.families.idefics3 import (
    IMAGE,
    LONGEST_SIDE,
    Idefics3Config,
    Idefics3ImageConfig,
    SplitRows,
    SquareTiling,
    idefics_tower,
    image_tiling,
    tile_side,
    whole_image,
)
from penstock.models.media.image_config import (
    edge_of,
    read_image_config,
    read_video_config,
)
from penstock.models.media.image_processor import ImageProcessor, Part
from penstock.models.media.number_words import number_words
from penstock.models.media.prepared import Frames, Pixels, PreparedMedia
from penstock.models.media.processor_files import has_video_config
from penstock.models.media.tiles import TileLayout
from penstock.models.towers.tower import MediaSpec

VIDEO: Final = "<video>"
SKIPPED_S: Final = 1.0
"""Seconds that are left out at both ends of a long video."""


class SmolVlmVideoConfig(Idefics3ImageConfig):
    """The keys of the video processor, with the defaults of transformers' SmolVLMVideoProcessor.
    The key `video_sampling` of older models contains `fps`, `max_frames` and `video_size`."""

    video_sampling: dict[str, Any] | None = None
    fps: float | None = None
    num_frames: int | None = None


class _Sampling(msgspec.Struct):
    fps: float = 1.0
    max_frames: int = 64
    video_size: dict[str, int] | int | None = None


@dataclass(frozen=True, slots=True)
class SpacedFrames:
    """The frames of a video: `rate` per second, at most `most`, at equal distances."""

    most: int
    rate: float
    tiling: SquareTiling

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        """See VideoSampling."""
        wanted = max(min(round(self.rate * duration_s), self.most), 1)
        per_second = num_frames / duration_s if duration_s > 0 else 0.0
        first, last = 0, max(num_frames - 1, 0)
        if duration_s - 2 * SKIPPED_S > self.most * self.rate:
            skipped = SKIPPED_S * per_second
            first, last = int(skipped), min(int(num_frames - skipped), last)
        if first >= last:
            first, last = 0, max(num_frames - 1, 0)
        places = np.unique(np.linspace(first, last, wanted, dtype=np.int64))
        return [float(place) / per_second if per_second else 0.0 for place in places]

    def frame(self, pixels: Pixels) -> Pixels:
        """See VideoSampling."""
        return self.tiling.tiles(pixels)[0][0]

    def extra(self, frames: Frames) -> tuple[int, ...]:
        """See VideoSampling. The numbers after those of an image are the seconds of the video."""
        return 0, 0, int(frames.duration_s)


@dataclass(frozen=True, slots=True)
class FrameRows:
    """The tokens of an image or video. `image`: those of images."""

    image: SplitRows

    def parts(self, media: PreparedMedia, layout: TileLayout) -> Iterable[Part]:
        """See Marking."""
        if media.kind == "image":
            yield from self.image.parts(media, layout)
            return
        seconds = layout.extra[2]
        duration = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        yield (
            f"You are provided the following series of {number_words(len(layout.grids))} frames"
            f" from a {duration} [H:MM:SS] video.\n"
        )
        for time in media.timestamps:
            yield f"\nFrame from {int(time // 60):02d}:{int(time % 60):02d}:"
            yield from whole_image(self.image.rows)
        yield "\n\n"


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, where = read_model_config(folder, Idefics3Config)
    images = read_image_config(folder, Idefics3ImageConfig)
    vision = vision_of(config.vision_config, where, ("model.vision_model.", "vision_model."))
    tile = tile_side(images, vision, str(folder))
    tower = idefics_tower(config, keys, where, vision, images, tile)
    sampling = _sampling(folder, images, tile)
    tower = replace(
        tower,
        kinds=frozenset({"image", "video"}),
        most_tiles=max(tower.most_tiles, sampling.most),
    )
    rows = tower.projector.rows_of((tile // vision.patch, tile // vision.patch))
    processor = ImageProcessor(
        IMAGE,
        config.image_token_id,
        vision.patch,
        image_tiling(images, tile, str(folder)),
        FrameRows(SplitRows(rows)),
        video_token=VIDEO,
        video_row_token=config.image_token_id,
        sampling=sampling,
    )
    return MediaSpec(processor, (tower,))


def _sampling(folder: Path, images: Idefics3ImageConfig, tile: int) -> SpacedFrames:
    """Return how frames are sampled. Without settings for videos, those of images apply."""
    if not has_video_config(folder):
        given, size, resampling = _Sampling(), images.size, images.resample
    else:
        videos = read_video_config(folder, SmolVlmVideoConfig)
        given = msgspec.convert(videos.video_sampling or {}, _Sampling)
        given.fps, given.max_frames = videos.fps or given.fps, videos.num_frames or given.max_frames
        size, resampling = given.video_size or videos.size, videos.resample
    longest = min(edge_of(size, "longest_edge", "size", str(folder)), LONGEST_SIDE)
    return SpacedFrames(given.max_frames, given.fps, SquareTiling(longest, tile, resampling))


FAMILY = Family(media=MediaFamily("SmolVLMForConditionalGeneration", read_folder))
