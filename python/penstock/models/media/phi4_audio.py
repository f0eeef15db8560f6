"""The log-mel features of Phi-4-multimodal's audio tower, like transformers'
Phi4MultimodalFeatureExtractor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.models.media.log_mel import HOP, SAMPLING_RATE, WINDOW
from penstock.models.media.prepared import PreparedMedia, Sound

Doubles = npt.NDArray[np.float64]

_FFT: Final = 512
_HIGHEST_HZ: Final = 7690.0
_PREEMPHASIS: Final = np.float32(0.97)
_FULL_SCALE: Final = np.float32(32_768)
_FLOOR: Final = 1.0
_BLOCK: Final = 4096  # frames per Fourier transform


@dataclass(frozen=True, slots=True)
class Phi4Features:
    """Features [frames, mels] of a recording, a frame per 10 ms. `rows_of(frames)`: the rows of
    the tower's result."""

    mels: int
    rows_of: Callable[[int], int]

    def features(self, sound: Sound) -> PreparedMedia:
        """See AudioFeatures. A recording shorter than a frame ends with silence."""
        samples = sound.samples.astype(np.float32)
        samples = np.pad(samples, (0, max(0, WINDOW - len(samples))))
        windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP]
        features = np.empty((len(windows), self.mels), np.float32)
        for begin in range(0, len(windows), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            features[block] = _log_mel(windows[block], self.mels)
        return PreparedMedia.of("audio", features)

    def rows(self, media: PreparedMedia) -> int:
        """See AudioFeatures."""
        return self.rows_of(media.shape[0])


def _log_mel(frames: npt.NDArray[np.float32], mels: int) -> npt.NDArray[np.float32]:
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    sharpened = (frames - _PREEMPHASIS * before) * _FULL_SCALE
    spectrum = np.abs(np.fft.rfft(np.hamming(WINDOW) * sharpened, n=_FFT)) ** 2
    logs: Doubles = np.log(np.maximum(spectrum @ _filters(mels), _FLOOR))
    return logs.astype(np.float32)


@lru_cache(maxsize=4)
def _filters(mels: int) -> Doubles:
    """Return triangular filters [_FFT // 2 + 1, mels] up to 7690 Hz. The triangles are straight on
    Kaldi's scale of pitch."""
    marks = np.linspace(0, _pitch(np.array(_HIGHEST_HZ)), mels + 2)
    pitches = _pitch(np.linspace(0, SAMPLING_RATE / 2, _FFT // 2 + 1))
    slopes = marks[None, :] - pitches[:, None]
    widths = np.diff(marks)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    filters: Doubles = np.maximum(0, np.minimum(rising, falling))
    return filters


def _pitch(hertz: Doubles) -> Doubles:
    pitch: Doubles = 1127.0 * np.log(1.0 + hertz / 700.0)
    return pitch
