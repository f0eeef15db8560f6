"""rope_cache and norm_rope_cache with every ISA: against float64, and bit for bit per token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from native_isas import ISAS, Kernels

EPS = 1e-6


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


@dataclass
class Tokens:
    heads: tuple[int, int, int]
    qkv: npt.NDArray[np.float32]
    rope: npt.NDArray[np.float32]
    positions: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    norms: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None
    block_size: int = 16
    dtype: npt.DTypeLike = np.float16


def draw(
    heads: tuple[int, int, int],
    tokens: int,
    rotated: int,
    norm: bool = False,
    block_size: int = 16,
    dtype: npt.DTypeLike = np.float16,
) -> Tokens:
    random = np.random.default_rng(3)
    query_heads, kv_heads, dim = heads
    angles = np.outer(np.arange(512), 10000.0 ** (-np.arange(0, rotated, 2) / rotated))
    blocks = tokens // block_size + 3
    weights = random.standard_normal((2, dim), np.float32)
    return Tokens(
        heads,
        random.standard_normal((tokens, (query_heads + 2 * kv_heads) * dim), np.float32),
        np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32),
        random.integers(0, 512, tokens).astype(np.int32),
        random.permutation(blocks * block_size)[:tokens].astype(np.int32),
        (weights[0].copy(), weights[1].copy()) if norm else None,
        block_size,
        dtype,
    )


def run(kernels: Kernels, t: Tokens, rows: slice = slice(None)) -> tuple[np.ndarray, ...]:
    """Return q, keys and values of those tokens; slots that were not written are NaN."""
    query_heads, kv_heads, dim = t.heads
    blocks = len(t.qkv) // t.block_size + 3
    keys = np.full((blocks, kv_heads, dim, t.block_size), np.nan, t.dtype)
    values = np.full((blocks, kv_heads, t.block_size, dim), np.nan, t.dtype)
    qkv = np.ascontiguousarray(t.qkv[rows])
    out = np.full((len(qkv), query_heads * dim), np.nan, np.float32)
    tensors = [qkv, t.rope, t.positions[rows].copy(), t.slots[rows].copy(), keys, values, out]
    if t.norms is None:
        kernels("rope_cache", tensors, [*t.heads])
    else:
        kernels("norm_rope_cache", [*tensors, *t.norms], [*t.heads], [EPS])
    return out, keys, values


def expected(t: Tokens) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q [T, H, D], k and v [T, K, D] in float64."""
    query_heads, kv_heads, dim = t.heads
    rows = t.qkv.astype(np.float64).reshape(len(t.qkv), -1, dim)
    q, k, v = np.split(rows, [query_heads, query_heads + kv_heads], axis=1)
    if t.norms is not None:
        q = q / np.sqrt((q**2).mean(-1, keepdims=True) + EPS) * t.norms[0]
        k = k / np.sqrt((k**2).mean(-1, keepdims=True) + EPS) * t.norms[1]
    half = t.rope.shape[1] // 2
    angles = t.rope[t.positions].astype(np.float64)
    cosine, sine = angles[:, None, :half], angles[:, None, half:]

    def rotate(x: np.ndarray) -> np.ndarray:
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate([a * cosine - b * sine, b * cosine + a * sine, rest], axis=-1)

    return rotate(q), rotate(k), v


SHAPES = [
    ((9, 3, 64), 64, False),
    ((4, 2, 128), 128, True),
    ((2, 2, 96), 48, False),
    ((2, 1, 80), 20, False),
    ((2, 1, 80), 32, True),
    ((3, 1, 40), 40, True),
    ((4, 1, 256), 256, False),
    ((1, 1, 8), 2, False),
]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("tokens", [1, 5, 70])
@pytest.mark.parametrize(("heads", "rotated", "norm"), SHAPES)
def test_rows_match_float64(kernels, heads, rotated, norm, tokens, dtype):
    t = draw(heads, tokens, rotated, norm, dtype=dtype)
    out, keys, values = run(kernels, t)
    q, k, v = expected(t)
    np.testing.assert_allclose(out, q.reshape(tokens, -1), rtol=2e-6, atol=2e-6)
    block, offset = t.slots // t.block_size, t.slots % t.block_size
    close = {"rtol": 2e-6, "atol": 2e-6} if dtype == np.float32 else {"rtol": 1e-3, "atol": 1e-4}
    np.testing.assert_allclose(keys[block, :, :, offset], k, **close)
    np.testing.assert_array_equal(values[block, :, offset], v.astype(np.float32).astype(dtype))


@pytest.mark.parametrize("block_size", [16, 32])
def test_slots_of_other_tokens_stay_untouched(kernels, block_size):
    t = draw((2, 2, 64), 70, 64, block_size=block_size)
    _, keys, values = run(kernels, t)
    written = np.zeros(len(keys) * block_size, bool)
    written[t.slots] = True
    written = written.reshape(len(keys), block_size)
    assert np.isnan(keys.transpose(0, 3, 1, 2)[~written]).all()
    assert np.isfinite(keys.transpose(0, 3, 1, 2)[written]).all()
    assert np.isnan(values.transpose(0, 2, 1, 3)[~written]).all()
    assert np.isfinite(values.transpose(0, 2, 1, 3)[written]).all()


@pytest.mark.parametrize("norm", [False, True])
def test_bits_of_a_token_do_not_depend_on_the_batch(kernels, norm):
    t = draw((9, 3, 64), 70, 64, norm)
    out, keys, values = run(kernels, t)
    for token in (0, 3, 16, 69):
        own, own_keys, own_values = run(kernels, t, slice(token, token + 1))
        block, offset = divmod(int(t.slots[token]), t.block_size)
        np.testing.assert_array_equal(own[0], out[token])
        np.testing.assert_array_equal(own_keys[block, :, :, offset], keys[block, :, :, offset])
        np.testing.assert_array_equal(own_values[block, :, offset], values[block, :, offset])


def test_float16_cache_rounds_half_to_even_and_keeps_extremes(kernels):
    t = draw((1, 1, 64), 1, 64)
    special = [
        1 + 2**-11,
        1 + 3 * 2**-11,
        65519.0,
        65520.0,
        -1e30,
        2.0**-24,
        2.0**-25,
        1e-8,
        np.nan,
    ]
    t.qkv[0, 128 : 128 + len(special)] = special
    _, _, values = run(kernels, t)
    block, offset = divmod(int(t.slots[0]), t.block_size)
    with np.errstate(over="ignore"):
        want = t.qkv[0, 128:].astype(np.float16)
    np.testing.assert_array_equal(values[block, 0, offset], want)
