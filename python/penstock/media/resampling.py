"""Changes the sampling rate of audio in NumPy, which needs no threads of a library."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt

MAX_PHASES: Final = 640
"""Maximum number of filter phases. It makes the usual rates exact; other ratios of rates are
rounded, by less than 3 millionths."""
ZERO_CROSSINGS: Final = 64
ROLLOFF: Final = 0.9475937
BETA: Final = 14.7696566
"""Width, cut-off and window of torchaudio's best Kaiser filter."""
_BLOCK_SAMPLES: Final = 1 << 18

Samples = npt.NDArray[np.float32]


@lru_cache(maxsize=4)
def _filter(inputs: int, outputs: int, half: int, cutoff: float) -> tuple[Samples, Samples]:
    """Return the weights of a group's inputs, and of the next group's: [inputs, outputs]."""
    at = np.arange(outputs) * (inputs / outputs) + half
    distance = np.arange(2 * inputs)[:, None] - at
    window = np.i0(BETA * np.sqrt(np.clip(1 - (distance / half) ** 2, 0, None)))
    weights = cutoff * np.sinc(cutoff * distance) * window / np.i0(BETA)
    weights[np.abs(distance) >= half] = 0
    first, second = np.split(weights.astype(np.float32), 2)
    return first, second


class Resampler:
    """A windowed-sinc filter with one phase per output position, over a stream of samples.

    A group of input samples and the next group yield a group of output samples through two
    matrices, so the work is matrix products.
    """

    def __init__(self, source_hz: int, target_hz: int) -> None:
        ratio = Fraction(source_hz, target_hz).limit_denominator(MAX_PHASES)
        self._down, self._up = max(1, ratio.numerator), ratio.denominator
        cutoff = min(1.0, self._up / self._down) * ROLLOFF
        self._half = ceil(ZERO_CROSSINGS / cutoff)  # input samples on each side of an output
        groups = ceil(2 * self._half / self._down)
        self._inputs, self._outputs = groups * self._down, groups * self._up
        self._matrices = _filter(self._inputs, self._outputs, self._half, cutoff)
        self._pending: list[Samples] = [np.zeros(self._half, np.float32)]
        self._num_pending = self._half
        self._num_samples = 0
        self._num_returned = 0

    def feed(self, samples: Samples) -> Samples:
        """Return the output samples that `samples` complete; usually none until some 10,000s of
        samples are there."""
        self._num_samples += len(samples)
        self._append(samples)
        if self._num_pending < _BLOCK_SAMPLES:
            return np.empty(0, np.float32)
        return self._filtered()

    def finish(self) -> Samples:
        """Return the remaining output samples. The stream is over after that."""
        self._append(np.zeros(2 * self._inputs, np.float32))
        total = ceil(self._num_samples * self._up / self._down)
        before = self._num_returned
        return self._filtered()[: total - before]

    def _append(self, samples: Samples) -> None:
        self._pending.append(samples)
        self._num_pending += len(samples)

    def _filtered(self) -> Samples:
        pending = np.concatenate(self._pending)
        groups = len(pending) // self._inputs
        if groups < 2:
            self._pending = [pending]
            return np.empty(0, np.float32)
        rows = pending[: groups * self._inputs].reshape(groups, self._inputs)
        first, second = self._matrices
        result = (rows[:-1] @ first + rows[1:] @ second).ravel()
        self._pending = [pending[(groups - 1) * self._inputs :]]
        self._num_pending = len(self._pending[0])
        self._num_returned += len(result)
        return result
