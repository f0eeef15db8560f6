"""The log-mel features of Gemma 4's audio tower, like transformers' Gemma4AudioFeatureExtractor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.models.media.log_mel import HOP, SAMPLING_RATE
from penstock.models.media.prepared import PreparedMedia, Sound

Doubles = npt.NDArray[np.float64]

FRAME: Final = 320
_FFT: Final = 512
_LONGEST: Final = 30 * SAMPLING_RATE
_MEL_FLOOR: Final = 1e-3


@dataclass(frozen=True, slots=True)
class GemmaFeatures:
    """Features [frames, mels] of the first 30 seconds of a recording, a frame per 10 ms.
    `rows_of(frames)`: the rows of the tower's result."""

    mels: int
    rows_of: Callable[[int], int]

    def features(self, sound: Sound) -> PreparedMedia:
        """See AudioFeatures. A recording shorter than a frame ends with silence."""
        samples = sound.samples[:_LONGEST].astype(np.float64)
        samples = np.pad(samples, (FRAME // 2, max(0, FRAME // 2 + 1 - len(samples))))
        windows = np.lib.stride_tricks.sliding_window_view(samples, FRAME + 1)[::HOP, :FRAME]
        spectrum = np.abs(np.fft.rfft(windows * _window(), n=_FFT))
        logs = np.log(spectrum @ _filters(self.mels) + _MEL_FLOOR)
        return PreparedMedia.of("audio", logs.astype(np.float32))

    def rows(self, media: PreparedMedia) -> int:
        """See AudioFeatures."""
        return self.rows_of(media.shape[0])


@lru_cache(maxsize=1)
def _window() -> Doubles:
    """Return the periodic Hann window in the precision of transformers."""
    window: Doubles = np.hanning(FRAME + 1)[:-1].astype(np.float32).astype(np.float64)
    return window


@lru_cache(maxsize=4)
def _filters(mels: int) -> Doubles:
    """Return triangular filters [_FFT // 2 + 1, mels] from 0 to 8 kHz on HTK's scale."""
    top = SAMPLING_RATE / 2
    marks = np.linspace(0, 2595 * np.log10(1 + top / 700), mels + 2)
    edges = 700 * (10 ** (marks / 2595) - 1)
    frequencies = np.linspace(0, top, _FFT // 2 + 1)
    slopes = edges[None, :] - frequencies[:, None]
    widths = np.diff(edges)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    filters: Doubles = np.maximum(0, np.minimum(rising, falling))
    return filters
