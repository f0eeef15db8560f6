"""An adapter in memory: the low-rank factors of each part of a linear layer that it changes.

With an adapter, a part computes y = W x + b (a x). PEFT's scale (alpha / rank, or alpha /
sqrt(rank) with rsLoRA) is included in `b`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of one part with C inputs and N outputs, float32 and contiguous, of rank Q.

    - `a`: [Q, C].
    - `b`: [N, Q]. Its rows have the order of the decoder's weights; the scale is included.
    """

    a: npt.NDArray[np.float32]
    b: npt.NDArray[np.float32]

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])


@dataclass(frozen=True, slots=True)
class Adapter:
    """One revision of an adapter.

    - `rank`: the largest rank of its factors.
    - `size_bytes`: the size of all factors in float32.
    - `layers`: for each layer of the model, part -> factors. Parts ("q", "k", "gate") are those of
      `LoraLinear.parts`; unchanged parts are omitted.
    """

    revision: str
    rank: int
    size_bytes: int
    layers: tuple[Mapping[str, Factors], ...]
