"""The tokens of a step whose logits are needed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.scheduler.types import Chunk

Ints = npt.NDArray[np.int32]
Index = npt.NDArray[np.intp]


def sample_rows_of(chunks: tuple[Chunk, ...], query_starts: Ints) -> Ints:
    """Return the indices of the tokens of a step whose logits are needed: first each token at which
    a row samples, followed by its draft tokens, then the tokens whose next token is scored."""
    samples = [index for index, chunk in enumerate(chunks) if chunk.samples]
    rows = query_starts[1:][samples] - np.int32(1)
    if any(chunk.draft_tokens for chunk in chunks):
        counts = np.array([1 + len(chunk.draft_tokens) for chunk in chunks if chunk.samples])
        rows = (np.repeat(rows, counts) - _countdown(counts)).astype(np.int32)
    scored = [
        np.arange(chunk.num_scores, dtype=np.int32) + (start + chunk.score_from - chunk.start)
        for chunk, start in zip(chunks, query_starts.tolist(), strict=False)
        if chunk.num_scores
    ]
    return np.concatenate([rows, *scored]) if scored else rows


def _countdown(counts: Index) -> Index:
    """Return the concatenation of n - 1, ..., 1, 0 for each count n."""
    ends = np.cumsum(counts)
    return np.repeat(ends, counts) - 1 - np.arange(ends[-1])
