"""Writes to an int8 KV cache and attention over it, with every ISA: against float64, and bit for
bit against itself. The cases of `kernels.ops.int8_cache` test more shapes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from attention_reference import Chunk, Sequences, expected, random_sequences
from native_isas import ISAS, Kernels

# Limits that split every step here, and none.
SPLIT, WHOLE = 1 << 22, 0
CONTEXTS = [330, 45, 280]


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


@dataclass
class Int8Cache:
    """An int8 cache, and the sequences whose keys and values it represents exactly. `key_codes` [B,
    K, D / 2, P, 2], `value_codes` [B, K, P / 2, D, 2] and the scales [B, K, P] are views."""

    exact: Sequences
    keys: npt.NDArray[np.int8]
    values: npt.NDArray[np.int8]
    key_codes: npt.NDArray[np.int8]
    value_codes: npt.NDArray[np.int8]
    key_scales: npt.NDArray[np.float32]
    value_scales: npt.NDArray[np.float32]


def parts_of(cache: npt.NDArray[np.int8], dim: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return views of the elements and of the scales of keys or values."""
    flat = cache.reshape(*cache.shape[:2], -1)
    return flat[..., : dim * size], flat[..., dim * size :].view(np.float32)


def int8_cache(
    heads: tuple[int, int, int], contexts: list[int], block_size: int = 16, seed: int = 0
) -> Int8Cache:
    """Return random sequences. Every slot without a token has NaN scales and random bytes."""
    sequences = random_sequences(heads, contexts, block_size, np.float64, seed)
    blocks, kv_heads, dim, size = sequences.keys.shape
    random = np.random.default_rng(seed)
    keys = np.zeros((blocks, kv_heads, dim + 4, size), np.int8)
    values = np.zeros((blocks, kv_heads, size, dim + 4), np.int8)
    key_codes, key_scales = parts_of(keys, dim, size)
    value_codes, value_scales = parts_of(values, dim, size)
    key_codes = key_codes.reshape(blocks, kv_heads, dim // 2, size, 2)
    value_codes = value_codes.reshape(blocks, kv_heads, size // 2, dim, 2)
    exact = []
    for array, axis, scales in (
        (sequences.keys, 2, key_scales),
        (sequences.values, 3, value_scales),
    ):
        peak = np.abs(array).max(axis)
        scales[...] = peak / 127 * random.uniform(1, 4, peak.shape)
        spread = np.expand_dims(scales, axis).astype(np.float64)
        noise = random.integers(-128, 128, array.shape)
        codes = np.where(np.isnan(array), noise, np.rint(array / spread)).astype(np.int8)
        exact.append(np.where(np.isnan(array), np.nan, codes * spread))
        if axis == 2:
            key_codes[...] = codes.reshape(blocks, kv_heads, dim // 2, 2, size).swapaxes(3, 4)
        else:
            value_codes[...] = codes.reshape(blocks, kv_heads, size // 2, 2, dim).swapaxes(3, 4)
    of_exact = replace(sequences, keys=exact[0], values=exact[1])
    views = key_codes, value_codes, key_scales, value_scales
    return Int8Cache(of_exact, keys, values, *views)


def attend(
    kernels: Kernels,
    cache: Int8Cache,
    chunks: list[Chunk],
    window: int = 0,
    partial_floats: int = SPLIT,
) -> list[np.ndarray]:
    """Compute one step over the chunks; return the result of each [tokens, H * D]."""
    sequences = cache.exact
    queries = np.concatenate([sequences.queries[c.row][c.begin : c.end] for c in chunks])
    starts = np.cumsum([0, *(c.end - c.begin for c in chunks)]).astype(np.int32)
    out = np.full_like(queries, np.nan)
    query_heads, kv_heads, dim = sequences.heads
    kernels(
        "int8_paged_attention",
        [
            queries,
            starts,
            np.array([c.end for c in chunks], np.int32),
            np.ascontiguousarray(sequences.tables[[c.row for c in chunks]]),
            cache.keys,
            cache.values,
            out,
            np.full(partial_floats, np.nan, np.float32),
        ],
        [query_heads, kv_heads, dim, window],
        [dim**-0.5, 0.0],
    )
    return np.split(out, starts[1:-1])


@pytest.mark.parametrize("window", [0, 1, 48, 65])
@pytest.mark.parametrize("heads", [(9, 3, 64), (2, 2, 40), (8, 1, 128), (4, 1, 256), (3, 3, 8)])
def test_attention_matches_float64_over_the_numbers_that_the_cache_holds(kernels, heads, window):
    cache = int8_cache(heads, CONTEXTS)
    chunks = [Chunk(0, 250, 330), Chunk(1, 0, 45), Chunk(2, 279, 280)]
    for chunk, got in zip(chunks, attend(kernels, cache, chunks, window), strict=True):
        want = expected(cache.exact, chunk, heads[2] ** -0.5, window)
        error = np.abs(got - want.output)
        # Rounding queries of up to 8 by 8 / 32766 changes scores by 1.4e-4 in the mean.
        assert (error <= 1e-3).all(), f"{chunk}: {np.nanmax(error)}"


@pytest.mark.parametrize("window", [0, 47, 300])
@pytest.mark.parametrize("heads", [(9, 3, 64), (2, 2, 40), (8, 1, 128)])
def test_bits_do_not_depend_on_how_a_sequence_is_computed(kernels, heads, window):
    length = CONTEXTS[0]
    cache = int8_cache(heads, CONTEXTS)
    (whole,) = attend(kernels, cache, [Chunk(0, 0, length)], window)
    assert np.isfinite(whole).all()
    for sizes in ([1, 7, 100, 150, 72], [257, 73], [5, 3, 1] * 36 + [6]):
        borders = np.cumsum([0, *sizes])
        parts = [
            attend(kernels, cache, [Chunk(0, int(a), int(b))], window)[0]
            for a, b in itertools.pairwise(borders)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    for position in (0, 17, 63, 64, 255, 256, 329):
        token = Chunk(0, position, position + 1)
        others = [Chunk(1, 0, 45), Chunk(2, 279, 280)]
        alone = attend(kernels, cache, [token], window)[0]
        unsplit = attend(kernels, cache, [token], window, WHOLE)[0]
        batched = attend(kernels, cache, [others[0], token, others[1]], window)[1]
        crowded = attend(kernels, cache, [token, *[others[1]] * 40], window)[0]
        for got in (alone, unsplit, batched, crowded):
            np.testing.assert_array_equal(got[0], whole[position])


@pytest.mark.parametrize("position", [70, 71])
@pytest.mark.parametrize("scales", ["key_scales", "value_scales"])
def test_a_key_or_value_that_is_not_finite_reaches_only_the_tokens_that_see_it(
    kernels, position, scales
):
    cache = int8_cache((3, 1, 64), [120])
    before = attend(kernels, cache, [Chunk(0, 0, 120)], 20)[0]
    block, offset = cache.exact.tables[0, position // 16], position % 16
    getattr(cache, scales)[block, :, offset] = np.nan
    after = attend(kernels, cache, [Chunk(0, 0, 120)], 20)[0]
    sees = slice(position, position + 20)
    assert np.isnan(after[sees]).all()
    for rest in (slice(0, position), slice(position + 20, 120)):
        np.testing.assert_array_equal(after[rest], before[rest])


def test_the_largest_sums_do_not_overflow(kernels):
    """All products of a score have one sign. One key, whose score is the highest, has all of the
    weight; an overflow would give it to the others."""
    cache = int8_cache((1, 1, 1024), [64])
    block, offset = cache.exact.tables[0, 1], 5
    cache.key_codes[...], cache.value_codes[...] = -127, 127
    cache.key_codes[block, :, :, offset] = 127
    cache.value_codes[block, :, offset // 2, :, offset % 2] = -127
    cache.key_scales[...], cache.value_scales[...] = 0.1, 1.0
    cache.exact.queries[0][:] = 1.0
    (got,) = attend(kernels, cache, [Chunk(0, 63, 64)])
    np.testing.assert_allclose(got, -127.0, rtol=1e-4)


def write(
    kernels: Kernels,
    qkv: npt.NDArray[np.float32],
    heads: tuple[int, int, int],
    slots: npt.NDArray[np.int32],
    blocks: int = 3,
) -> tuple[np.ndarray, ...]:
    """Write tokens without rotating them. Return the cache by slot: elements of keys and values
    [slots, K, D], and the scales [slots, K]. In slots that were not written, all bits are set,
    and so scales are NaN."""
    query_heads, kv_heads, dim = heads
    keys = np.full((blocks, kv_heads, dim + 4, 16), -1, np.int8)
    values = np.full((blocks, kv_heads, 16, dim + 4), -1, np.int8)
    out = np.empty((len(qkv), query_heads * dim), np.float32)
    rope = np.concatenate([np.ones((1, dim // 2)), np.zeros((1, dim // 2))], 1).astype(np.float32)
    positions = np.zeros(len(qkv), np.int32)
    kernels("int8_rope_cache", [qkv, rope, positions, slots, keys, values, out], [*heads])
    (key_codes, key_scales), (value_codes, value_scales) = (
        parts_of(part, dim, 16) for part in (keys, values)
    )
    by_key = key_codes.reshape(blocks, kv_heads, dim // 2, 16, 2).transpose(0, 3, 1, 2, 4)
    by_value = value_codes.reshape(blocks, kv_heads, 8, dim, 2).transpose(0, 2, 4, 1, 3)
    shape = (blocks * 16, kv_heads, dim)
    scales = [one.transpose(0, 2, 1).reshape(shape[:2]) for one in (key_scales, value_scales)]
    return by_key.reshape(shape), by_value.reshape(shape), *scales


@pytest.mark.parametrize("heads", [(4, 2, 64), (2, 2, 40), (1, 1, 8)])
def test_each_head_of_a_token_is_rounded_to_127_steps_of_its_largest_number(kernels, heads):
    random = np.random.default_rng(5)
    query_heads, kv_heads, dim = heads
    tokens, slots = 20, random.permutation(48)[:20].astype(np.int32)
    qkv = random.standard_normal((tokens, (query_heads + 2 * kv_heads) * dim), np.float32)
    qkv *= np.exp(3 * random.standard_normal((tokens, 1), np.float32))
    *codes, key_scales, value_scales = write(kernels, qkv, heads, slots)
    parts = qkv.reshape(tokens, -1, dim)
    given = parts[:, query_heads : query_heads + kv_heads], parts[:, query_heads + kv_heads :]
    untouched = np.setdiff1d(np.arange(48), slots)
    for code, scales, numbers in zip(codes, (key_scales, value_scales), given, strict=True):
        peak = np.abs(numbers).max(-1)
        np.testing.assert_allclose(scales[slots], peak / 127, rtol=1e-6)
        error = np.abs(code[slots] * scales[slots][..., None] - numbers)
        assert (error <= 0.50001 * scales[slots][..., None]).all()
        assert (np.abs(code[slots]).max(-1) == 127).all()
        assert (code[untouched] == -1).all() and np.isnan(scales[untouched]).all()


def test_a_token_is_written_with_the_same_bits_beside_others(kernels):
    random = np.random.default_rng(6)
    heads, slots = (4, 2, 64), random.permutation(192)[:70].astype(np.int32)
    qkv = random.standard_normal((70, 8 * 64), np.float32)
    together = write(kernels, qkv, heads, slots, 12)
    for token in (0, 16, 69):
        alone = write(kernels, qkv[token : token + 1], heads, slots[token : token + 1], 12)
        for one, all_of_them in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[slots[token]], all_of_them[slots[token]])


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_the_scale_of_numbers_that_are_not_finite_is_nan(kernels, broken):
    qkv = np.ones((1, 3 * 64), np.float32)
    qkv[0, 64 + 9] = broken
    _, values, key_scales, value_scales = write(kernels, qkv, (1, 1, 64), np.array([3], np.int32))
    assert np.isnan(key_scales[3]).all()
    np.testing.assert_allclose(values[3] * value_scales[3], 1.0, rtol=1e-6)


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-31])
def test_numbers_whose_scale_has_no_inverse_become_zeros(kernels, size):
    qkv = np.full((1, 3 * 64), size, np.float32)
    keys, values, key_scales, value_scales = write(
        kernels, qkv, (1, 1, 64), np.array([17], np.int32)
    )
    for codes, scales in ((keys, key_scales), (values, value_scales)):
        assert not (codes[17] * scales[17]).any()


def test_isas_with_vectors_of_one_size_give_the_same_bits():
    cache = int8_cache((9, 3, 64), CONTEXTS)
    chunks = [Chunk(0, 250, 330), Chunk(1, 0, 45), Chunk(2, 279, 280)]
    of_sixteen = [isa for isa in ISAS if "avx512" in isa or "amx" in isa]
    results = [attend(Kernels(isa), cache, chunks) for isa in of_sixteen]
    for result in results[1:]:
        for one, first in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(one, first)
