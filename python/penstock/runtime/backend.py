"""What computes a step for the CPU runtime: a decoder over one implementation of the ops."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import StepInputs
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.runtime.adapters import RuntimeAdapters

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class SamplingOps(Protocol):
    """Draws from logits. Meanings: `kernels.sampler_inputs`."""

    def sample(self, logits: Floats, rows: SamplingRows) -> Ints:
        """[S, V], adjusted in place -> [S] token ids; negative where there is none."""

    def top_logprobs(
        self, logits: Floats, rows: Ints, tokens: Ints, count: int
    ) -> tuple[Floats, Ints, Floats]:
        """Of the rows `rows` of logits, as the model gave them or as `sample` left them: that of
        `tokens`, [R], and ids and values of the `count` best, [R, count]."""


class Backend(SamplingOps, Protocol):
    """Owns weights and cache."""

    @property
    def weight_bytes(self) -> int: ...

    @property
    def buffer_bytes(self) -> int:
        """Memory of the activations of a step."""

    @property
    def adapters(self) -> RuntimeAdapters | None:
        """None where the settings have no adapters."""

    def logits(self, inputs: StepInputs[Ints]) -> Floats:
        """One step: [S, V] float32 at the places `sample_rows`, valid until the next call."""

    def prepare(self, used_blocks: int) -> bool:
        """See `Runtime.prepare`: for blocks of the cache beyond the first `used_blocks`."""

    def close(self) -> None: ...
