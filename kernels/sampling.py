"""What the sampler takes and gives: the contract that reference, native and Triton share.

The pipeline, per row, in this order: temperature, top-k, top-p, min-p, draw. (Bias, penalties and
the grammar mask come before temperature when they join.) A draw is counter-based: one uniform
number from Philox 4x32-10 with key = seed and counter = position, so an answer never depends on
its neighbours in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of S rows, one entry each.

    `temperature` 0: greedy, the lowest id among equals. `top_k` 0: off. `top_p` 1: off; 0: greedy.
    `min_p` 0: off. `seed` uint64, `position` uint64: index of the drawn token in its sequence.
    """

    temperature: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    seed: npt.NDArray[np.uint64]
    position: npt.NDArray[np.uint64]


# sample(logits, rows) -> tokens
#   logits: [S, V] float32, modified in place. Returns [S] int32; -1 where a row holds NaN or +inf,
#   or nothing but -inf.
#   Candidates after temperature t: p = softmax(logits / t). top-k keeps the k highest logits, ties
#   at the border by lowest id. top-p keeps the shortest prefix in (probability descending, id
#   ascending) order whose mass of the top-k distribution reaches top_p, at least one. min-p keeps
#   p >= min_p * max(p). The draw is the inverse CDF over the kept tokens in ascending id order at
#   the row's uniform number: the first kept id whose cumulative mass exceeds u * (kept mass).
#   u = (w0 >> 8) * 2^-24, w0 the first output word of Philox with key words (seed low, seed high)
#   and counter words (position low, position high, 0, 0).
#
# top_logprobs(logits, token, count) -> (logprob of token, [(id, logprob)] best first)
#   of one row of untouched logits: log_softmax before temperature.
