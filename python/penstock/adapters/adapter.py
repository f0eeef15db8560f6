"""An adapter in memory: the low-rank factors of each projection that it changes.

A projection's result is y = W x + b (a x); the scale of PEFT (alpha / rank, or alpha / sqrt(rank)
with rsLoRA) is folded into `b`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Factors:
    """Of one projection with K inputs and N outputs: `a` [R, K] and `b` [N, R], float32, in rows of
    C order. `b` has the row order of the model's own weights, the scale is in it."""

    a: npt.NDArray[np.float32]
    b: npt.NDArray[np.float32]

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])


@dataclass(frozen=True, slots=True)
class Adapter:
    """One revision. `rank`: the largest of its factors. `size_bytes`: of all factors in 32-bit
    floats. `layers`: for each layer of the model, the factors of some of its unfused projections
    ("q", "k", "v", "o", "gate", "up", "down")."""

    revision: str
    rank: int
    size_bytes: int
    layers: tuple[Mapping[str, Factors], ...]
