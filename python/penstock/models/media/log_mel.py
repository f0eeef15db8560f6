"""Computes the log-mel features of speech models, like transformers' WhisperFeatureExtractor."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

SAMPLING_RATE: Final = 16_000
WINDOW: Final = 400
"""Samples of one frame of the Fourier transform."""
HOP: Final = 160
"""Samples between two frames: 10 ms."""
_FLOOR: Final = 1e-10
_RANGE: Final = 8.0
"""Powers of ten below the loudest element at which features are cut off."""
_BLOCK: Final = 4096  # frames per Fourier transform: 13 MB of float64


def log_mel(samples: Floats, num_mels: int) -> Floats:
    """Return the features of a recording, [num_mels, len(samples) // HOP] float32.

    - `samples`: [N] mono, 16,000 samples per second; N is at least WINDOW // 2 + 1.

    The sound is mirrored at both ends, as by `center=True` of other libraries.
    """
    frames = len(samples) // HOP
    padded = np.pad(samples, WINDOW // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:frames]
    filters = mel_filters(num_mels)
    mel = np.empty((frames, num_mels))
    for begin in range(0, frames, _BLOCK):
        block = slice(begin, begin + _BLOCK)
        spectrum = np.fft.rfft(windows[block] * _hann())
        mel[block] = (spectrum.real**2 + spectrum.imag**2) @ filters
    logs = np.log10(np.maximum(mel, _FLOOR, out=mel), out=mel)
    np.maximum(logs, logs.max() - _RANGE, out=logs)
    return np.ascontiguousarray(((logs + 4.0) / 4.0).T, np.float32)


@lru_cache(maxsize=4)
def mel_filters(num_mels: int) -> Doubles:
    """Return triangular filters [WINDOW // 2 + 1, num_mels] from 0 to 8 kHz with equal areas, on
    the scale of Slaney's auditory toolbox: linear up to 1 kHz, then logarithmic."""
    frequencies = np.linspace(0, SAMPLING_RATE // 2, WINDOW // 2 + 1)
    top = 15 + np.log(SAMPLING_RATE / 2 / 1000) * 27 / np.log(6.4)
    marks = np.linspace(0, top, num_mels + 2)
    logarithmic = 1000 * np.exp(np.log(6.4) / 27 * (marks - 15))
    edges = np.where(marks >= 15, logarithmic, 200 * marks / 3)
    slopes = edges[None, :] - frequencies[:, None]
    rising = -slopes[:, :-2] / np.diff(edges)[:-1]
    falling = slopes[:, 2:] / np.diff(edges)[1:]
    triangles = np.maximum(0, np.minimum(rising, falling))
    filters: Doubles = triangles * (2 / (edges[2:] - edges[:-2]))
    return filters


@lru_cache(maxsize=1)
def _hann() -> Doubles:
    """Return the periodic Hann window [WINDOW]."""
    window: Doubles = np.hanning(WINDOW + 1)[:-1]
    return window
