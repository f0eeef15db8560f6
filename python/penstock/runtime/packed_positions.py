"""The places of tokens in a step, which packs the chunks of its rows one after the other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


def packed_positions(starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Return where the chunks [start, start + length) of R rows begin in a step of T tokens,
    followed by T: [R + 1]; and the position of each token in its sequence: [T]."""
    query_starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=query_starts[1:])
    positions = np.arange(query_starts[-1], dtype=np.int32)
    positions += np.repeat(starts - query_starts[:-1], lengths)
    return query_starts, positions
