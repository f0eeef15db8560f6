"""The log-mel features of Gemma 3n's audio tower, like transformers'
Gemma3nAudioFeatureExtractor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.models.media.log_mel import HOP, SAMPLING_RATE
from penstock.models.media.prepared import PreparedMedia, Sound

Doubles = npt.NDArray[np.float64]

_FRAME: Final = 512
_FFT: Final = 1024
_LONGEST: Final = 30 * SAMPLING_RATE
_UNIT: Final = 128
_LOWEST_HZ, _HIGHEST_HZ = 125.0, 7600.0
_PREEMPHASIS: Final = np.float32(0.97)
_FLOOR: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Gemma3nFeatures:
    """Features [frames, mels] of the first 30 seconds of a recording, a frame per 10 ms. Every
    recording has `tokens` rows."""

    mels: int
    tokens: int

    def features(self, sound: Sound) -> PreparedMedia:
        """See AudioFeatures. A recording ends with silence up to a multiple of 128 samples."""
        samples = sound.samples[:_LONGEST].astype(np.float32)
        missing = max(-len(samples) % _UNIT, _FRAME + _UNIT - len(samples))
        samples = np.pad(samples, (0, missing))
        windows = np.lib.stride_tricks.sliding_window_view(samples, _FRAME)[:-1:HOP]
        sharpened = windows.copy()
        sharpened[:, 1:] -= _PREEMPHASIS * windows[:, :-1]
        sharpened[:, 0] *= np.float32(1 - 0.97)
        spectrum = np.abs(np.fft.rfft(sharpened * _window(), n=_FFT))
        logs = np.log(np.maximum(spectrum @ _filters(self.mels), _FLOOR))
        return PreparedMedia.of("audio", logs.astype(np.float32))

    def rows(self, media: PreparedMedia) -> int:
        """See AudioFeatures."""
        return self.tokens


@lru_cache(maxsize=1)
def _window() -> npt.NDArray[np.float32]:
    """Return the periodic Hann window. Its cosines are float32, as those of transformers are."""
    angles = 2 * np.pi * np.arange(_FRAME, dtype=np.float32) / _FRAME
    return (0.5 * (1 - np.cos(angles))).astype(np.float32)


@lru_cache(maxsize=4)
def _filters(mels: int) -> Doubles:
    """Return triangular filters [_FFT // 2 + 1, mels] on HTK's scale."""
    lowest, highest = (2595 * np.log10(1 + hertz / 700) for hertz in (_LOWEST_HZ, _HIGHEST_HZ))
    edges = 700 * (10 ** (np.linspace(lowest, highest, mels + 2) / 2595) - 1)
    frequencies = np.linspace(0, SAMPLING_RATE / 2, _FFT // 2 + 1)
    slopes = edges[None, :] - frequencies[:, None]
    widths = np.diff(edges)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    filters: Doubles = np.maximum(0, np.minimum(rising, falling))
    return filters
