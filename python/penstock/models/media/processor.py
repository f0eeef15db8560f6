"""The interface of a media processor, which each multimodal family implements with NumPy and
Pillow.

A processor prepares media in a decoding process, and places them in the prompt in an API process.
It never sees tensors of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.models.media.prepared import Frames, MediaKind, Pixels, PreparedMedia, Sound

Encode: TypeAlias = Callable[[str], Sequence[int]]
"""Returns the token ids of a text in which special tokens are recognized."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """The tokens that replace the placeholder of one item in a prompt.

    - `token_ids`: all tokens, including separators such as the start of a row.
    - `runs`: (first token, number of tokens) of each part of `token_ids` whose embeddings are rows
      of the tower's result, in the order of these rows.
    - `whole`: the tokens of a run attend to each other in both directions, so one step must
      compute the run.
    """

    token_ids: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class PlacedMedia:
    """An item in a prompt. `start`: index in the prompt of the first token of `expansion`."""

    media: PreparedMedia
    expansion: Expansion
    start: int


@runtime_checkable
class MediaAmongOthers(Protocol):
    """A processor whose images depend on the number of images in the prompt."""

    def among(self, media: PreparedMedia, images: int) -> PreparedMedia:
        """Return an item as it is shown in a prompt with this number of images: the item itself,
        or an item that this number and the item determine."""


class MediaProcessor(Protocol):
    """Prepares the media of one model family and places them in prompts.

    Implementations are frozen structs of the numbers in the model's files. A kind that is not in
    `placeholders` is refused before its method is called.
    """

    @property
    def placeholders(self) -> Mapping[MediaKind, str]:
        """For each kind that the model takes, the text that its chat template writes for an item,
        as far as it is replaced: for Qwen2-VL, "<|image_pad|>" without its neighbours."""

    @property
    def sampling_rate(self) -> int:
        """Samples per second of the `Sound` that `audio` takes; 0 if the model takes no audio."""

    def image(self, pixels: Pixels) -> PreparedMedia:
        """Resize and cut an image of any size. Raises InvalidRequest for an impossible shape."""

    def video(self, frames: Frames) -> PreparedMedia:
        """Resize and cut the frames of a video."""

    def audio(self, sound: Sound) -> PreparedMedia:
        """Compute the features of a recording."""

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        """Return the seconds of the frames to sample from a video with `num_frames` frames, in
        ascending order."""

    def expand(self, media: PreparedMedia, encode: Encode) -> Expansion:
        """Return the tokens that replace the placeholder of `media`."""

    def rope_positions(
        self, token_ids: Sequence[int], items: Sequence[PlacedMedia]
    ) -> npt.NDArray[np.int32] | None:
        """Return the positions of the prompt's tokens, [3, T] (time, height, width), or None if
        they are 0 to T - 1. Generated tokens continue from the largest position plus one."""
