"""Attention of conformers: each position sees the last ones, with scores that depend on the content
and on the distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_FORBIDDEN = np.float32(-1e9)


@dataclass(frozen=True, slots=True)
class ConformerAttention:
    """Attention of one layer.

    - `chunk`: positions that are computed together.
    - `context`: positions that have a relative key, the own one included.
    - `visible`: how many of them each position sees.
    - `cap`: scores are capped smoothly at this size.
    - `query_scale`: [D]; `key_scale`: a number.
    - `relative`: [context, H * D], keys of the distances context - 1 to 0.
    """

    heads: int
    chunk: int
    context: int
    visible: int
    cap: float
    query_scale: Floats
    key_scale: float
    relative: Floats

    def __call__(self, q: Floats, k: Floats, v: Floats) -> Floats:
        """Return the attention of all positions: [N, H * D] each."""
        count, width = q.shape
        blocks, past = -(-count // self.chunk), self.context - 1
        end = blocks * self.chunk - count
        queries = self._heads(np.pad(q, ((0, end), (0, 0)))) * self.query_scale
        queries = queries.reshape(blocks, self.chunk, self.heads, -1).swapaxes(1, 2)
        keys = self._blocks(np.pad(k * np.float32(self.key_scale), ((past, end), (0, 0))))
        values = self._blocks(np.pad(v, ((past, end), (0, 0))))
        scores = queries @ keys.swapaxes(2, 3)  # [blocks, H, chunk, past + chunk]
        scores += self._by_distance(queries)
        scores = np.float32(self.cap) * np.tanh(scores / np.float32(self.cap))
        scores = np.where(self._hidden(blocks)[:, None], _FORBIDDEN, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        seen = (weights @ values).swapaxes(1, 2).reshape(blocks * self.chunk, width)
        return np.ascontiguousarray(seen[:count], np.float32)

    def _heads(self, x: Floats) -> Floats:
        return x.reshape(len(x), self.heads, -1)

    def _blocks(self, x: Floats) -> Floats:
        """Return the positions that each block sees, [blocks, H, past + chunk, D]."""
        size = self.context - 1 + self.chunk
        windows = np.lib.stride_tricks.sliding_window_view(self._heads(x), size, axis=0)
        return np.ascontiguousarray(windows[:: self.chunk].transpose(0, 1, 3, 2))

    def _by_distance(self, queries: Floats) -> Floats:
        """Return the scores of the distances, 0 where a position is not seen."""
        relative = self._heads(self.relative).transpose(1, 2, 0)  # [H, D, context]
        by_distance = queries @ relative
        scores = np.zeros((*by_distance.shape[:-1], self.context - 1 + self.chunk), np.float32)
        for row in range(self.chunk):
            scores[..., row, row : row + self.context] = by_distance[..., row, :]
        return scores

    def _hidden(self, blocks: int) -> npt.NDArray[np.bool_]:
        """Return the mask of each block, [blocks, chunk, past + chunk]: True for a position that is
        not seen."""
        size = self.context - 1 + self.chunk
        distance = np.arange(self.chunk)[:, None] + self.context - 1 - np.arange(size)
        outside = (distance < 0) | (distance >= self.visible)
        first = np.arange(blocks)[:, None] * self.chunk - (self.context - 1) + np.arange(size)
        return outside | (first < 0)[:, None, :]


def distance_sinusoids(farthest: int, width: int) -> Floats:
    """Return the positions of the distances `farthest` to 0, [farthest + 1, width]: sines, then
    cosines."""
    half = width // 2
    step = np.float32(np.log(10_000) / max(half - 1, 1))
    rates = np.exp(np.arange(half, dtype=np.float32) * -step)
    angles = np.arange(farthest, -1, -1, dtype=np.float32)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
