"""paged_attention with every ISA: against float64, and bit for bit against itself."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from attention_reference import Chunk, Sequences, expected, random_sequences
from native_isas import ISAS, Kernels

# Limits that split every step here, and none.
SPLIT, WHOLE = 1 << 22, 0

# ISAs that multiply a float16 cache with shared heads in bf16, in pairs or by matrix tiles. They
# round weights as well, by at most 2^-8 of themselves, which dividing by their sum may double.
IN_BF16 = ("avx512_bf16", "emulated_avx512_bf16", "amx", "emulated_amx")
WEIGHT_ROUNDING = 2**-8 * (1 + 2**-7)


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


def attend(
    kernels: Kernels,
    sequences: Sequences,
    chunks: list[Chunk],
    window: int = 0,
    partial_floats: int = SPLIT,
    sinks: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Compute one step over the chunks; return the result of each [tokens, H * D]."""
    queries = np.concatenate([sequences.queries[c.row][c.begin : c.end] for c in chunks])
    starts = np.cumsum([0, *(c.end - c.begin for c in chunks)]).astype(np.int32)
    out = np.full_like(queries, np.nan)
    partials = np.full(partial_floats, np.nan, np.float32)
    query_heads, kv_heads, dim = sequences.heads
    kernels(
        "paged_attention" if sinks is None else "sink_attention",
        [
            queries,
            starts,
            np.array([c.end for c in chunks], np.int32),
            np.ascontiguousarray(sequences.tables[[c.row for c in chunks]]),
            sequences.keys,
            sequences.values,
            out,
            partials,
            *([] if sinks is None else [sinks]),
        ],
        [query_heads, kv_heads, dim, window],
        [dim**-0.5, 0.0],
    )
    return np.split(out, starts[1:-1])


def check(
    kernels: Kernels, sequences: Sequences, chunks: list[Chunk], window: int = 0, atol: float = 3e-6
) -> None:
    query_heads, kv_heads, dim = sequences.heads
    scale = dim**-0.5
    shared_halves = sequences.keys.dtype == np.float16 and query_heads > kv_heads
    pairs = kernels.isa in IN_BF16 and shared_halves
    for chunk, got in zip(chunks, attend(kernels, sequences, chunks, window), strict=True):
        want = expected(sequences, chunk, scale, window, pairs)
        most = atol + 1e-5 * np.abs(want.output) + pairs * WEIGHT_ROUNDING * want.spread
        error = np.abs(got - want.output)
        assert (error <= most).all(), f"{chunk}: {np.nanmax(error - most)} more than may be"


MIXED = [Chunk(0, 0, 5), Chunk(1, 30, 31), Chunk(2, 15, 18), Chunk(3, 0, 1), Chunk(4, 70, 131)]
MIXED_CONTEXTS = [chunk.end for chunk in MIXED]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("dim", [32, 40, 64, 72, 80, 96, 128, 160, 192, 256])
def test_mixed_chunks_match_float64_for_every_head_dim(kernels, dim, dtype):
    check(kernels, random_sequences((3, 1, dim), MIXED_CONTEXTS, dtype=dtype), MIXED)


@pytest.mark.parametrize(
    "heads", [(1, 1), (4, 4), (4, 2), (9, 3), (5, 1), (8, 1), (14, 2), (24, 1)]
)
def test_query_heads_share_their_kv_head(kernels, heads):
    check(kernels, random_sequences((*heads, 64), MIXED_CONTEXTS), MIXED)


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_block_sizes_match_float64(kernels, block_size):
    check(kernels, random_sequences((4, 2, 64), MIXED_CONTEXTS, block_size), MIXED)


@pytest.mark.parametrize("window", [1, 2, 9, 16, 63, 64, 65, 100, 300, 1000])
def test_window_hides_older_keys(kernels, window):
    contexts = [1, 40, 130, 600]
    chunks = [Chunk(0, 0, 1), Chunk(1, 0, 40), Chunk(2, 129, 130), Chunk(3, 520, 600)]
    check(kernels, random_sequences((3, 1, 32), contexts), chunks, window)


@pytest.mark.parametrize("context", [1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 512, 700])
def test_decode_at_the_borders_of_tiles_and_spans(kernels, context):
    check(kernels, random_sequences((9, 3, 64), [context]), [Chunk(0, context - 1, context)])


@pytest.mark.parametrize("window", [0, 48, 300])
@pytest.mark.parametrize("heads", [(9, 3, 64), (2, 2, 40), (4, 2, 40), (8, 1, 128)])
def test_bits_do_not_depend_on_how_a_sequence_is_computed(kernels, heads, window):
    length = 330
    sequences = random_sequences(heads, [length, 45, 280])
    (whole,) = attend(kernels, sequences, [Chunk(0, 0, length)], window)
    assert np.isfinite(whole).all()
    for sizes in ([1, 7, 100, 150, 72], [257, 73], [64] * 5 + [10], [5, 3, 1] * 36 + [6]):
        borders = np.cumsum([0, *sizes])
        parts = [
            attend(kernels, sequences, [Chunk(0, int(a), int(b))], window)[0]
            for a, b in itertools.pairwise(borders)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    for position in (0, 17, 63, 64, 255, 256, 329):
        token = Chunk(0, position, position + 1)
        others = [Chunk(1, 0, 45), Chunk(2, 279, 280)]
        alone = attend(kernels, sequences, [token], window)[0]
        unsplit = attend(kernels, sequences, [token], window, WHOLE)[0]
        batched = attend(kernels, sequences, [others[0], token, others[1]], window)[1]
        crowded = attend(kernels, sequences, [token, *[others[1]] * 40], window)[0]
        for got in (alone, unsplit, batched, crowded):
            np.testing.assert_array_equal(got[0], whole[position])


@pytest.mark.parametrize("window", [0, 48, 300])
@pytest.mark.parametrize("heads", [(9, 3, 64), (2, 2, 40)])
def test_bits_beside_sinks_do_not_depend_on_how_a_sequence_is_computed(kernels, heads, window):
    length, sinks = 330, np.linspace(-3, 9, heads[0], dtype=np.float32)
    sequences = random_sequences(heads, [length, 280])
    (whole,) = attend(kernels, sequences, [Chunk(0, 0, length)], window, sinks=sinks)
    for position in (0, 17, 255, 256, 329):
        token, other = Chunk(0, position, position + 1), Chunk(1, 279, 280)
        alone = attend(kernels, sequences, [token], window, sinks=sinks)[0]
        unsplit = attend(kernels, sequences, [token], window, WHOLE, sinks)[0]
        crowded = attend(kernels, sequences, [token, *[other] * 40], window, sinks=sinks)[0]
        for got in (alone, unsplit, crowded):
            np.testing.assert_array_equal(got[0], whole[position])


def test_a_sink_takes_its_share_of_the_weight(kernels):
    """Scores are equal. A sink without weight changes nothing."""
    heads = (4, 2, 64)
    sequences = random_sequences(heads, [300], dtype=np.float32)
    sequences.queries[0][:] = 0
    plain = attend(kernels, sequences, [Chunk(0, 0, 300)])[0]
    none = np.full(4, -np.inf, np.float32)
    same = attend(kernels, sequences, [Chunk(0, 0, 300)], sinks=none)[0]
    np.testing.assert_array_equal(same, plain)
    sinks = np.log(np.array([0.5, 2, 100, 1e4], np.float32))
    seen = np.arange(1, 301)[:, None]
    share = (seen / (seen + np.exp(sinks))).repeat(64, axis=1)
    got = attend(kernels, sequences, [Chunk(0, 0, 300)], sinks=sinks)[0]
    np.testing.assert_allclose(got, plain * share, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("window", [0, 700])
def test_prompts_whose_cache_exceeds_the_level_2_cache(kernels, window):
    """The kernel then prefetches the next tile; a task has the most rows that it may have."""
    length, begin = 1100, 1000
    sequences = random_sequences((4, 2, 128), [length, 40])
    chunks = [Chunk(1, 0, 40), Chunk(0, begin, length)]
    check(kernels, sequences, chunks, window)
    whole = attend(kernels, sequences, chunks, window)[1]
    for first, end in ((begin, begin + 1), (begin + 3, begin + 60), (length - 1, length)):
        (part,) = attend(kernels, sequences, [Chunk(0, first, end)], window)
        np.testing.assert_array_equal(part, whole[first - begin : end - begin])


def test_bits_do_not_depend_on_the_placement_of_blocks(kernels):
    sequences = random_sequences((9, 3, 64), [300])
    chunk = [Chunk(0, 290, 300)]
    before = attend(kernels, sequences, chunk)[0]
    order = np.random.default_rng(1).permutation(len(sequences.keys))
    place = np.argsort(order)
    moved = Sequences(
        sequences.heads,
        sequences.contexts,
        sequences.queries,
        np.ascontiguousarray(sequences.keys[order]),
        np.ascontiguousarray(sequences.values[order]),
        place[sequences.tables].astype(np.int32),
    )
    np.testing.assert_array_equal(attend(kernels, moved, chunk)[0], before)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("position", [70, 71])
def test_later_tokens_of_the_chunk_do_not_leak(kernels, position, dtype):
    sequences = random_sequences((3, 1, 64), [100], dtype=dtype)
    before = attend(kernels, sequences, [Chunk(0, 0, 100)])[0]
    poison(sequences, position)
    after = attend(kernels, sequences, [Chunk(0, 0, 100)])[0]
    np.testing.assert_array_equal(after[:position], before[:position])
    assert np.isnan(after[position:]).all()
    for begin in (position - 1, position - 3):
        (few,) = attend(kernels, sequences, [Chunk(0, begin, 75)])
        np.testing.assert_array_equal(few, after[begin:75])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("position", [70, 71])
def test_tokens_before_the_window_do_not_leak(kernels, position, dtype):
    sequences = random_sequences((3, 1, 64), [120], dtype=dtype)
    before = attend(kernels, sequences, [Chunk(0, 0, 120)], window=20)[0]
    poison(sequences, position)
    free = position + 20
    after = attend(kernels, sequences, [Chunk(0, 0, 120)], window=20)[0]
    np.testing.assert_array_equal(after[free:], before[free:])
    assert np.isnan(after[position:free]).all()
    for begin in (free, free - 2):
        (few,) = attend(kernels, sequences, [Chunk(0, begin, free + 3)], window=20)
        np.testing.assert_array_equal(few, after[begin : free + 3])


def poison(sequences: Sequences, position: int) -> None:
    """Set key and value of a position to NaN, which no finite weight makes finite."""
    block, offset = sequences.tables[0, position // 16], position % 16
    sequences.keys[block, :, :, offset] = np.nan
    sequences.values[block, :, offset] = np.inf


def test_scores_far_apart_neither_overflow_nor_vanish(kernels):
    sequences = random_sequences((2, 1, 32), [400], dtype=np.float32)
    sequences.queries[0] *= 300.0
    check(kernels, sequences, [Chunk(0, 0, 400)], atol=2e-3)


def test_wide_isas_agree_with_their_emulation():
    pairs = [(isa, f"emulated_{isa}") for isa in ("avx512", "avx512_bf16", "amx")]
    assert_same_bits(pairs, random_sequences((9, 3, 64), MIXED_CONTEXTS))
    assert_same_bits(pairs, random_sequences((5, 1, 40), MIXED_CONTEXTS))


@pytest.mark.parametrize(("heads", "dtype"), [((9, 3, 64), np.float32), ((4, 4, 64), np.float16)])
def test_float32_caches_and_unshared_heads_are_computed_in_float32_by_every_isa(heads, dtype):
    pairs = [("avx512", "avx512_bf16"), ("emulated_avx512", "emulated_avx512_bf16")]
    pairs.append(("emulated_avx512", "emulated_amx"))
    assert_same_bits(pairs, random_sequences(heads, MIXED_CONTEXTS, dtype=dtype))


def assert_same_bits(pairs: list[tuple[str, str]], sequences: Sequences) -> None:
    """Compare each pair of ISAs that can both run here."""
    for pair in pairs:
        if all(isa in ISAS for isa in pair):
            first, second = (attend(Kernels(isa), sequences, MIXED) for isa in pair)
            for a, b in zip(first, second, strict=True):
                np.testing.assert_array_equal(a, b)


def test_blocks_may_be_strided(kernels):
    """Blocks are windows of a pool that other layers share."""
    sequences = random_sequences((3, 1, 64), MIXED_CONTEXTS)
    want = attend(kernels, sequences, MIXED)
    apart = dataclasses.replace(
        sequences, keys=window_of(sequences.keys), values=window_of(sequences.values)
    )
    for got, expect in zip(attend(kernels, apart, MIXED), want, strict=True):
        np.testing.assert_array_equal(got, expect)


def window_of(cache: np.ndarray) -> np.ndarray:
    """Return the same cache as the middle of three in one array, between NaN."""
    pool = np.full((len(cache), 3, *cache.shape[1:]), np.nan, cache.dtype)
    pool[:, 1] = cache
    return pool[:, 1]
