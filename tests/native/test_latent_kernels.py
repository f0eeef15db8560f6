"""The native kernels of latent attention: the bits of their products, splits, and bad sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_isas import ISAS, Kernels

from penstock import _native
from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.native import NativeOps, Pool
from penstock.kernels.weights import Linear

HEADS, ROWS, WIDTH = 3, 40, 24


@pytest.fixture(scope="module", params=ISAS)
def ops(request: pytest.FixtureRequest) -> NativeOps:
    return NativeOps.eager(Pool(2), request.param)


def matrices(like: str) -> Linear:
    source = RandomInputs(0)
    return Linear(tuple(source.dense(ROWS, WIDTH, like) for _ in range(HEADS)))  # type: ignore[arg-type]


@pytest.mark.parametrize("like", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("tokens", [1, 37])
def test_a_head_has_the_bits_of_a_linear_layer(ops: NativeOps, like: str, tokens: int) -> None:
    weight = matrices(like)
    x = RandomInputs(1).normal(tokens, HEADS * WIDTH).numpy()
    got = ops.head_linear(x, ops.pack_head_linear(weight))
    for head, part in enumerate(weight.parts):
        own = np.ascontiguousarray(x[:, head * WIDTH : (head + 1) * WIDTH])
        expected = ops.linear(own, ops.pack_linear(Linear((part,))))
        columns = slice(head * ROWS, (head + 1) * ROWS)
        assert np.ascontiguousarray(got[:, columns]).tobytes() == expected.tobytes()


def test_matrices_that_are_not_dense_or_not_alike_are_refused(ops: NativeOps) -> None:
    good, source = matrices("f32"), RandomInputs(0)
    integers = Linear((source.affine(32, 32, "q8_0"),) * 2)
    unequal = Linear((*good.parts[1:], source.dense(ROWS + 8, WIDTH, "f32")))
    for wrong in (integers, unequal):
        with pytest.raises(ValueError, match="head_linear: the parts must be dense matrices of"):
            ops.pack_head_linear(wrong)
    with pytest.raises(ValueError, match="head_linear: heads have no bias"):
        ops.pack_head_linear(replace(good, bias=np.zeros(HEADS * ROWS, np.float32)))


def test_input_without_a_column_for_each_head_is_refused(ops: NativeOps) -> None:
    x = np.zeros((2, (HEADS - 1) * WIDTH), np.float32)
    with pytest.raises(ValueError, match="head_linear: x: must have the input columns of each"):
        ops.head_linear(x, ops.pack_head_linear(matrices("f32")))


def attend(kernels: Kernels, partial_floats: int, latent: int = 64) -> np.ndarray:
    """Compute attention of two tokens over contexts of 700 and 90 tokens, with 32 heads."""
    heads, rotated, block = 32, 16, 16
    source = np.random.default_rng(3)
    keys = source.standard_normal((60, 1, latent + rotated, block)).astype(np.float32)
    values = np.ascontiguousarray(keys[:, :, :latent].transpose(0, 1, 3, 2))
    tables = source.permutation(60)[:50].reshape(1, 50).repeat(2, axis=0).astype(np.int32)
    q = source.standard_normal((2, heads * (latent + rotated))).astype(np.float32)
    out = np.full((2, heads * latent), np.nan, np.float32)
    contexts, partials = np.array([700, 90], np.int32), np.full(partial_floats, np.nan, np.float32)
    kernels(
        "latent_attention",
        [q, np.array([0, 1, 2], np.int32), contexts, tables, keys, values, out, partials],
        [heads, latent, rotated],
        [0.1],
    )
    return out


@pytest.mark.parametrize("isa", ISAS)
def test_splitting_by_spans_and_heads_changes_no_bit(isa: str) -> None:
    split = attend(Kernels(isa), _native.latent_partial_floats(32, 64, 800))
    whole = attend(Kernels(isa), 0)
    assert np.isfinite(split).all()
    assert split.tobytes() == whole.tobytes()


def test_partial_results_have_a_limit() -> None:
    assert _native.latent_partial_floats(128, 512, 256) == 0
    assert _native.latent_partial_floats(128, 512, 1 << 20) == 32 << 20


def test_sizes_that_are_no_multiples_of_eight_are_refused() -> None:
    with pytest.raises(ValueError, match="latent, rotated: must be positive multiples of 8"):
        attend(Kernels(ISAS[0]), 0, latent=60)
