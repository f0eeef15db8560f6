"""The media processor of the families that hear with Whisper's features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from penstock.models.media.log_mel import HOP, SAMPLING_RATE, WINDOW, log_mel
from penstock.models.media.prepared import Frames, MediaKind, Pixels, PreparedMedia, Sound
from penstock.models.media.processor import Encode, Expansion, PlacedMedia

_LEAST_FRAMES: Final = 3
"""The fewest frames of a recording, which make two positions: shorter ones end with silence."""


class AudioFeatures(Protocol):
    """Computes the features of recordings, and the number of their tokens."""

    def features(self, sound: Sound) -> PreparedMedia:
        """See `MediaProcessor.audio`."""

    def rows(self, media: PreparedMedia) -> int:
        """Return the rows of the tower's result."""


@dataclass(frozen=True, slots=True)
class AudioProcessor:
    """A `MediaProcessor` for recordings.

    - `token`: the text that the chat template writes for a recording.
    - `row_token`: the id of the token of one row of the tower's result.
    - `before`, `after`: texts around the rows.
    """

    token: str
    row_token: int
    features: AudioFeatures
    before: str = ""
    after: str = ""

    @property
    def placeholders(self) -> Mapping[MediaKind, str]:
        """See MediaProcessor."""
        return {"audio": self.token}

    @property
    def sampling_rate(self) -> int:
        """See MediaProcessor."""
        return SAMPLING_RATE

    def image(self, pixels: Pixels) -> PreparedMedia:
        """See MediaProcessor. These models take no images."""
        raise AssertionError("only kinds with a placeholder are prepared")

    def video(self, frames: Frames) -> PreparedMedia:
        """See MediaProcessor. These models take no videos."""
        raise AssertionError("only kinds with a placeholder are prepared")

    def audio(self, sound: Sound) -> PreparedMedia:
        """See MediaProcessor."""
        return self.features.features(sound)

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        """See MediaProcessor. These models take no videos."""
        raise AssertionError("only kinds with a placeholder are prepared")

    def expand(self, media: PreparedMedia, encode: Encode) -> Expansion:
        """See MediaProcessor."""
        rows = self.features.rows(media)
        before, after = (encode(text) if text else () for text in (self.before, self.after))
        return Expansion((*before, *(self.row_token,) * rows, *after), ((len(before), rows),))

    def rope_positions(
        self, token_ids: Sequence[int], items: Sequence[PlacedMedia]
    ) -> npt.NDArray[np.int32] | None:
        """See MediaProcessor. Positions are 0 to T - 1."""
        return None


@dataclass(frozen=True, slots=True)
class OneWindow:
    """Features of one window of `frames` frames: longer recordings are cut off, shorter ones padded
    with silence. `layout` is (positions before the padding,). Two positions become a row."""

    mels: int
    frames: int

    def features(self, sound: Sound) -> PreparedMedia:
        """See AudioFeatures."""
        samples = padded(sound, self.frames * HOP)
        frames = min(self.frames, max(-(-len(sound.samples) // HOP), _LEAST_FRAMES))
        return PreparedMedia.of("audio", log_mel(samples, self.mels), ((frames - 1) // 2 + 1,))

    def rows(self, media: PreparedMedia) -> int:
        """See AudioFeatures."""
        return media.layout[0] // 2


@dataclass(frozen=True, slots=True)
class WholeWindows:
    """Features of as many windows of `frames` frames as a recording needs; the last one is padded
    with silence. A window makes `window_rows` rows."""

    mels: int
    frames: int
    window_rows: int

    def features(self, sound: Sound) -> PreparedMedia:
        """See AudioFeatures."""
        window = self.frames * HOP
        samples = padded(sound, max(1, -(-len(sound.samples) // window)) * window)
        return PreparedMedia.of("audio", log_mel(samples, self.mels))

    def rows(self, media: PreparedMedia) -> int:
        """See AudioFeatures."""
        return media.shape[1] // self.frames * self.window_rows


@dataclass(frozen=True, slots=True)
class StackedWindows:
    """Features of a recording that ends with silence up to a whole frame, in windows of `frames`
    frames, of which the last one may be shorter. Each `stacked` frames of a window, and the rest,
    make a row."""

    mels: int
    frames: int
    stacked: int

    def features(self, sound: Sound) -> PreparedMedia:
        """See AudioFeatures."""
        frames = max(-(-len(sound.samples) // HOP), _LEAST_FRAMES)
        return PreparedMedia.of("audio", log_mel(padded(sound, frames * HOP), self.mels))

    def rows(self, media: PreparedMedia) -> int:
        """See AudioFeatures."""
        windows, rest = divmod(media.shape[1], self.frames)
        return windows * -(-self.frames // self.stacked) + -(-rest // self.stacked)


@dataclass(frozen=True, slots=True)
class Unpadded:
    """Features of a recording without padding. `rows_of(frames)`: the rows of the tower's
    result."""

    mels: int
    rows_of: Callable[[int], int]

    def features(self, sound: Sound) -> PreparedMedia:
        """See AudioFeatures."""
        samples = padded(sound, max(len(sound.samples), WINDOW))
        return PreparedMedia.of("audio", log_mel(samples, self.mels))

    def rows(self, media: PreparedMedia) -> int:
        """See AudioFeatures."""
        return self.rows_of(media.shape[1])


def padded(sound: Sound, count: int) -> npt.NDArray[np.float32]:
    """Return `count` samples: the first ones of a recording, then silence."""
    samples = np.zeros(count, np.float32)
    kept = sound.samples[:count]
    samples[: len(kept)] = kept
    return samples
