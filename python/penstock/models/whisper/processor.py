"""Prepares recordings for Whisper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.models.media.log_mel import HOP, SAMPLING_RATE, WINDOW, log_mel
from penstock.models.media.prepared import Frames, MediaKind, Pixels, PreparedMedia, Sound
from penstock.models.media.processor import Encode, Expansion, PlacedMedia

_NO_PLACE: Mapping[MediaKind, str] = {"audio": ""}


@dataclass(frozen=True, slots=True)
class WhisperProcessor:
    """The `MediaProcessor` of Whisper: recordings of any length, which have no tokens in a prompt.

    - `mels`: features per frame.
    - `frames`: the frames of a window.
    """

    mels: int
    frames: int

    @property
    def placeholders(self) -> Mapping[MediaKind, str]:
        return _NO_PLACE

    @property
    def sampling_rate(self) -> int:
        return SAMPLING_RATE

    def image(self, pixels: Pixels) -> PreparedMedia:
        raise NotImplementedError("Whisper takes audio only")

    def video(self, frames: Frames) -> PreparedMedia:
        raise NotImplementedError("Whisper takes audio only")

    def audio(self, sound: Sound) -> PreparedMedia:
        """Return the features of the whole recording, [mels, frames], a frame per 10 ms. It is
        followed by silence, so that the last frames do not see mirrored sound."""
        samples = np.concatenate([sound.samples, np.zeros(WINDOW, np.float32)])
        features = log_mel(samples, self.mels)[:, : max(1, len(sound.samples) // HOP)]
        return PreparedMedia.of("audio", features)

    def window(self, recording: npt.NDArray[np.float32], begin: int) -> PreparedMedia:
        """Return the window of `frames` frames that starts at frame `begin` of a recording's
        features. Missing frames are zeros, the value of a medium loudness."""
        features = np.zeros((self.mels, self.frames), np.float32)
        part = recording[:, begin : begin + self.frames]
        features[:, : part.shape[1]] = part
        return PreparedMedia.of("audio", features)

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        return ()

    def expand(self, media: PreparedMedia, encode: Encode) -> Expansion:
        return Expansion((), ())

    def rope_positions(
        self, token_ids: Sequence[int], items: Sequence[PlacedMedia]
    ) -> npt.NDArray[np.int32] | None:
        return None
