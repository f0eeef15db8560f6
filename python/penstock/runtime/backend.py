"""What computes a step for the CPU runtime: a decoder over one implementation of the ops."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.kernels.sampling import SamplingRows
from penstock.kernels.table import StepInputs

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class Backend(Protocol):
    """Owns weights and cache. Meanings of the samplers: `kernels.sampling`."""

    @property
    def weight_bytes(self) -> int: ...

    @property
    def buffer_bytes(self) -> int:
        """Memory of the activations of a step."""

    def logits(self, inputs: StepInputs[Ints]) -> Floats:
        """One step: [S, V] float32, valid until the next call."""

    def sample(self, logits: Floats, rows: SamplingRows) -> Ints:
        """[S, V], modified in place -> [S] token ids, -1 for a row without finite logits."""

    def top_logprobs(
        self, logits: Floats, token: int, count: int
    ) -> tuple[float, list[tuple[int, float]]]:
        """Of one row [V] of untouched logits."""

    def close(self) -> None: ...
