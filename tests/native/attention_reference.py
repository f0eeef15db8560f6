"""Attention steps over a poisoned paged cache, and their float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

POISON_BLOCK = 0  # all NaN; undefined entries of block tables point here


@dataclass
class Sequences:
    """Whole sequences in a cache: queries of every position, and block tables."""

    heads: tuple[int, int, int]
    contexts: tuple[int, ...]
    queries: list[npt.NDArray[np.float32]]  # per sequence [context, H * D]
    keys: npt.NDArray[np.generic]  # [B, K, D, P]
    values: npt.NDArray[np.generic]  # [B, K, P, D]
    tables: npt.NDArray[np.int32]  # [R, max_blocks]

    @property
    def block_size(self) -> int:
        return self.keys.shape[3]


def random_sequences(
    heads: tuple[int, int, int],
    contexts: Sequence[int],
    block_size: int = 16,
    dtype: npt.DTypeLike = np.float16,
    seed: int = 0,
) -> Sequences:
    """Return random sequences over scattered blocks; every slot without a token is NaN."""
    random = np.random.default_rng(seed)
    query_heads, kv_heads, dim = heads
    used = [-(-context // block_size) for context in contexts]
    order = 1 + random.permutation(sum(used) + 2)
    tables = np.full((len(used), max(used) + 2), POISON_BLOCK, np.int32)
    keys = np.full((len(order) + 1, kv_heads, dim, block_size), np.nan, dtype)
    values = np.full((len(order) + 1, kv_heads, block_size, dim), np.nan, dtype)
    taken = 0
    for row, (context, blocks) in enumerate(zip(contexts, used, strict=True)):
        tables[row, :blocks] = order[taken : taken + blocks]
        taken += blocks
        place = np.arange(context)
        block, offset = tables[row, place // block_size], place % block_size
        keys[block, :, :, offset] = random.standard_normal((context, kv_heads, dim))
        values[block, :, offset] = random.standard_normal((context, kv_heads, dim))
    queries = [
        2 * random.standard_normal((context, query_heads * dim), np.float32) for context in contexts
    ]
    return Sequences(heads, tuple(contexts), queries, keys, values, tables)


@dataclass
class Chunk:
    """Tokens [begin, end) of sequence `row`, computed in one step."""

    row: int
    begin: int
    end: int


def round_bf16(x: npt.NDArray) -> npt.NDArray[np.float64]:
    """Return x in float32 rounded to bf16, half to even."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


@dataclass
class Expected:
    """The expected result of a chunk [tokens, H * D] in float64. `spread`: the mean distance, by
    their weights, of the values that a token sees from its output: a relative error e of the
    weights moves it by e * spread."""

    output: npt.NDArray
    spread: npt.NDArray


def expected(
    sequences: Sequences, chunk: Chunk, scale: float, window: int, pairs: bool = False
) -> Expected:
    """`pairs`: scaled queries, keys and values are rounded to bf16 first; weights are not."""
    query_heads, kv_heads, dim = sequences.heads
    place = np.arange(chunk.end)
    block = sequences.tables[chunk.row, place // sequences.block_size]
    offset = place % sequences.block_size
    # A power of two, like the kernel's own scale.
    factor = np.float32(scale) * np.float32(np.log2(np.e))
    queries = sequences.queries[chunk.row][chunk.begin : chunk.end]
    queries = (queries * factor).reshape(len(queries), query_heads, dim)
    keys = sequences.keys[block, :, :, offset]
    values = sequences.values[block, :, offset]
    rounded = round_bf16 if pairs else lambda x: x
    queries, keys, values = (rounded(x).astype(np.float64) for x in (queries, keys, values))
    own = place[chunk.begin :, None]
    hidden = (place > own) | ((place <= own - window) if window else False)
    output, spread = np.empty_like(queries), np.empty_like(queries)
    for head in range(query_heads):
        kv_head = head // (query_heads // kv_heads)
        scores = np.where(hidden, -np.inf, queries[:, head] @ keys[:, kv_head].T)
        weights = np.exp2(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        output[:, head] = weights @ values[:, kv_head]
        for token, of_token in enumerate(weights):
            distance = np.abs(values[:, kv_head] - output[token, head])
            spread[token, head] = of_token @ distance
    return Expected(output.reshape(len(queries), -1), spread.reshape(len(queries), -1))
