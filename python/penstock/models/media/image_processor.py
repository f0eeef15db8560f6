"""The media processor of the families whose towers encode tiles: cutting into tiles, and the tokens
of an item, are parts that each family chooses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.models.media.prepared import Frames, MediaKind, Pixels, PreparedMedia, Sound
from penstock.models.media.processor import Encode, Expansion, PlacedMedia
from penstock.models.media.tiles import TileLayout, pack_tiles, tile_among
from penstock.models.media.tilings import SingleTile

Part: TypeAlias = "str | int"
"""A part of an item's tokens: a text, or a number of rows of the tower's result."""


class Tiling(Protocol):
    """Cuts an image into tiles."""

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """Return the tiles of an image, and the family's numbers for `TileLayout.extra`."""


class Marking(Protocol):
    """Describes the tokens of an item."""

    def parts(self, media: PreparedMedia, layout: TileLayout) -> Iterable[Part]:
        """Return texts and numbers of rows, in the order of the prompt."""


class VideoSampling(Protocol):
    """Chooses and resizes the frames of a video."""

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        """See MediaProcessor."""

    def frame(self, pixels: Pixels) -> Pixels:
        """Resize a frame."""

    def extra(self, frames: Frames) -> tuple[int, ...]:
        """Return the family's numbers for `TileLayout.extra`."""


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """A `MediaProcessor` for images, and for videos as series of images.

    - `image_token`, `video_token`: the text that the chat template writes for an item. If the model
      takes no videos, `video_token` is "".
    - `row_token`: the id of the token of one row of the tower's result; that of videos
      may differ.
    - `patch`: the side of a patch in pixels.
    - `whole`: see Expansion.
    - `beside`: makes the only tile of an image beside others; None: an image has all its tiles.
    """

    image_token: str
    row_token: int
    patch: int
    tiling: Tiling
    marking: Marking
    whole: bool = False
    video_token: str = ""
    video_row_token: int = 0
    sampling: VideoSampling | None = None
    beside: SingleTile | None = None

    @property
    def placeholders(self) -> Mapping[MediaKind, str]:
        """See MediaProcessor."""
        if self.sampling is None:
            return {"image": self.image_token}
        return {"image": self.image_token, "video": self.video_token}

    @property
    def sampling_rate(self) -> int:
        """See MediaProcessor."""
        return 0

    def image(self, pixels: Pixels) -> PreparedMedia:
        """See MediaProcessor."""
        tiles, extra = self.tiling.tiles(pixels)
        among = None if self.beside is None else self.beside.tiles(pixels)[0][0]
        return pack_tiles("image", tiles, self.patch, extra, among=among)

    def among(self, media: PreparedMedia, images: int) -> PreparedMedia:
        """See MediaAmongOthers."""
        if self.beside is None or media.kind != "image" or images == 1:
            return media
        return tile_among(media)

    def video(self, frames: Frames) -> PreparedMedia:
        """See MediaProcessor."""
        assert self.sampling is not None, "only kinds with a placeholder are prepared"
        tiles = [self.sampling.frame(pixels) for pixels in frames.pixels]
        extra = self.sampling.extra(frames)
        return pack_tiles("video", tiles, self.patch, extra, frames.timestamps)

    def audio(self, sound: Sound) -> PreparedMedia:
        """See MediaProcessor. These models take no audio."""
        raise AssertionError("only kinds with a placeholder are prepared")

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        """See MediaProcessor."""
        assert self.sampling is not None, "only kinds with a placeholder are prepared"
        return self.sampling.frame_times(duration_s, num_frames)

    def expand(self, media: PreparedMedia, encode: Encode) -> Expansion:
        """See MediaProcessor."""
        token = self.row_token if media.kind == "image" else self.video_row_token
        parts = self.marking.parts(media, TileLayout.of(media))
        return expansion_of(parts, token, encode, whole=self.whole)

    def rope_positions(
        self, token_ids: Sequence[int], items: Sequence[PlacedMedia]
    ) -> npt.NDArray[np.int32] | None:
        """See MediaProcessor. Positions are 0 to T - 1."""
        return None


def expansion_of(
    parts: Iterable[Part], row_token: int, encode: Encode, *, whole: bool = False
) -> Expansion:
    """Return the tokens of the parts of an item. Successive texts are encoded together."""
    token_ids: list[int] = []
    runs: list[tuple[int, int]] = []
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        token_ids += encode(text) if text else ()
        text = ""
        runs.append((len(token_ids), part))
        token_ids += [row_token] * part
    token_ids += encode(text) if text else ()
    return Expansion(tuple(token_ids), tuple(runs), whole)


@dataclass(frozen=True, slots=True)
class PlainRows:
    """The tokens of an item with nothing between its rows.

    - `merge`: the patches on a side of the square that becomes one row.
    - `more`: the rows of a tile in addition to its patches.
    - `before`, `after`: texts around the rows.
    """

    merge: int = 1
    more: int = 0
    before: str = ""
    after: str = ""

    def parts(self, media: PreparedMedia, layout: TileLayout) -> Iterable[Part]:
        """See Marking."""
        merge = self.merge
        rows = sum((high // merge) * (wide // merge) + self.more for high, wide in layout.grids)
        return (self.before, rows, self.after)
