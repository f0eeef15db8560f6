"""Wrong arguments raise TypeError or ValueError that name the argument; no kernel sees them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from decoder_step import inputs_of, make_model
from native_isas import native

X = np.ones((4, 32), np.float32)
WEIGHT = np.ones(32, np.float32)


def call_norm(x: Any = X, weight: Any = WEIGHT, out: Any = None, **others: Any) -> None:
    tensors = [x, weight, np.empty((4, 32), np.float32) if out is None else out]
    native.KernelSet("auto").call(
        native.ThreadPool(1),
        others.get("kernel", "rms_norm"),
        tensors,
        others.get("integers", []),
        others.get("reals", [1e-5]),
        others.get("object"),
    )


def read_only() -> Any:
    out = np.empty((4, 32), np.float32)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": [1.0]}, TypeError, "rms_norm: x: expected an array, got list"),
        ({"x": X.astype(np.float64)}, TypeError, "x: no kernel supports float64"),
        ({"x": X.astype(np.float16)}, TypeError, "x: expected float32, got float16"),
        ({"x": X.astype(">f4")}, ValueError, "x: must be in the byte order"),
        ({"x": X[0]}, ValueError, "x: expected 2 dimensions, got 1"),
        ({"x": np.float32(1)}, TypeError, "x: expected an array"),
        ({"x": np.array(1, np.float32)}, ValueError, "x: must have 1 to 4 dimensions"),
        ({"x": X.T.copy().T}, ValueError, "x: the last dimension must be contiguous"),
        ({"x": X[::-1]}, ValueError, "x: rows overlap or run backwards"),
        (
            {"x": np.lib.stride_tricks.as_strided(X, (4, 32), (8, 4))},
            ValueError,
            "x: rows overlap or run backwards",
        ),
        (
            {"x": np.ones(4 * 32 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(4, 32)},
            ValueError,
            "x: must be aligned",
        ),
        ({"weight": WEIGHT[:31]}, ValueError, "weight: dimension 0 is 31, expected W = 32"),
        ({"out": np.empty((3, 32), np.float32)}, ValueError, "out: dimension 0 is 3, expected T"),
        ({"out": X}, ValueError, "out: overlaps x"),
        ({"out": read_only()}, ValueError, "out: is read-only"),
        ({"reals": []}, ValueError, "rms_norm: takes 1 reals, got 0"),
        ({"integers": [1]}, ValueError, "rms_norm: takes 0 integers, got 1"),
        ({"object": object()}, TypeError, "rms_norm: takes no object"),
        ({"kernel": "silu_mul", "reals": []}, ValueError, "silu_mul: takes 2 tensors, got 3"),
        ({"kernel": "rsm_norm"}, KeyError, "has no kernel rsm_norm"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call_norm(**arguments)


def test_odd_gate_up_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gate_up: dimension 1 is 33, expected 2\*F = 32"):
        native.KernelSet("auto").call(
            native.ThreadPool(1),
            "silu_mul",
            [np.ones((2, 33), np.float32), np.empty((2, 16), np.float32)],
        )


def test_weights_packed_for_another_isa_are_refused() -> None:
    isas = native.supported_isas()
    if len(isas) < 2:
        pytest.skip("this build has one ISA")
    ops, other = make_model(1, isas[0]), make_model(1, isas[1])
    with pytest.raises(ValueError, match=f"was packed for ISA {isas[0]}, not {isas[1]}"):
        other.ops.linear(np.ones((1, 64), np.float32), ops.weights["output"])


def test_object_that_is_no_packed_weight_is_refused() -> None:
    with pytest.raises(TypeError, match="embedding: object: expected PackedLinear"):
        call_embedding(object())


def call_embedding(weight: Any) -> None:
    tensors = [np.zeros(1, np.int32), np.empty((1, 8), np.float32)]
    native.KernelSet("auto").call(native.ThreadPool(1), "embedding", tensors, [], [1.0], weight)


@pytest.mark.parametrize("token", [200, -1, 2**31 - 1, -(2**31)])
def test_token_outside_the_vocabulary_is_refused(token: int) -> None:
    model = make_model(1)
    with pytest.raises(ValueError, match=f"embedding: tokens: {token} is not in 0..199"):
        model.ops.embedding(model.weights["embedding"], np.array([0, token], np.int32), 1.0)


def test_row_outside_the_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gather_rows: rows: 4 is not in 0..3"):
        make_model(1).ops.gather_rows(X, np.array([4], np.int32))


def test_attention_refuses_blocks_outside_the_cache() -> None:
    model = make_model(1)
    inputs = inputs_of([([12], 3, 3)])
    with pytest.raises(ValueError, match=r"block_tables\[0\]: 12 is not in 0..11"):
        model.ops.attention(
            np.ones((3, 64), np.float32), inputs, model.caches[0], (4, 2, 16), 1.0, 0
        )


def test_heads_that_do_not_divide_are_refused() -> None:
    model = make_model(1)
    inputs = inputs_of([([1], 3, 3)])
    with pytest.raises(ValueError, match="H: must be a positive multiple of K"):
        model.ops.attention(
            np.ones((3, 48), np.float32), inputs, model.caches[0], (3, 2, 16), 1.0, 0
        )


@pytest.mark.parametrize("dim", [12, 1032])
def test_unsupported_head_sizes_are_refused(dim: int) -> None:
    model = make_model(1)
    keys, values = np.zeros((2, 1, dim, 16), np.float32), np.zeros((2, 1, 16, dim), np.float32)
    cache = dataclasses.replace(model.caches[0], keys=keys, values=values)
    with pytest.raises(ValueError, match="D: must be a multiple of 8 from 8 to 1024"):
        model.ops.attention(
            np.ones((3, dim), np.float32), inputs_of([([1], 3, 3)]), cache, (1, 1, dim), 1.0, 0
        )


def test_only_the_first_dimension_of_a_cache_may_be_strided() -> None:
    model = make_model(1)
    cache = model.caches[0]
    holey = np.zeros((*cache.keys.shape[:3], 2 * cache.keys.shape[3]), cache.keys.dtype)
    gaps = dataclasses.replace(cache, keys=holey[..., : cache.keys.shape[3]])
    with pytest.raises(ValueError, match="keys: must be C-contiguous, except in the first dim"):
        model.ops.attention(
            np.ones((3, 64), np.float32), inputs_of([([1], 3, 3)]), gaps, (4, 2, 16), 1.0, 0
        )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"bits": 5}, ValueError, "bits: must be 4 or 8, got 5"),
        ({"group": 64}, ValueError, "group: must be 16 or 32, got 64"),
        ({"zero_point": 256}, ValueError, "zero_point: must be in 0..255"),
        ({"q": np.zeros((4, 30), np.uint8)}, ValueError, "q: rows must be a multiple of the group"),
        ({"q": np.zeros((4, 32), np.int8)}, TypeError, "q: cannot be int8"),
        ({"scale": np.zeros((4, 3), np.float16)}, ValueError, r"scale: must be \[4, 2\]"),
        ({"scale": np.zeros((8, 2), np.float16)[::2]}, ValueError, "scale: must be C-contiguous"),
        ({"scale": np.zeros((4, 2), np.int8)}, ValueError, "super_scale: required"),
        ({"minimum": np.zeros((4, 2), np.int8)}, TypeError, "minimum: cannot be int8"),
        ({"super_scale": np.zeros((4, 1), np.float16)}, ValueError, "super_scale: only allowed if"),
    ],
)
def test_malformed_affine_weights_are_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {
        "bits": 4,
        "group": 32,
        "q": np.zeros((4, 32), np.uint8),
        "scale": np.zeros((4, 2), np.float16),
    }
    native.MatrixSource.affine(**arguments)
    with pytest.raises(error, match=message):
        native.MatrixSource.affine(**{**arguments, **change})


def test_bias_of_wrong_length_is_refused() -> None:
    source = native.MatrixSource.dense(np.zeros((4, 32), np.float32), "float32")
    with pytest.raises(ValueError, match=r"bias: must be \[4\]"):
        native.PackedLinear(
            native.KernelSet("auto"), native.ThreadPool(1), [source], np.zeros(5, np.float32)
        )


def test_rows_of_weights_that_were_packed_for_products_are_refused() -> None:
    source = native.MatrixSource.dense(np.zeros((4, 32), np.float32), "float32")
    kernels = native.KernelSet("auto")
    packed = native.PackedLinear(kernels, native.ThreadPool(1), [source])
    tokens, out = np.zeros(2, np.int32), np.zeros((2, 32), np.float32)
    with pytest.raises(ValueError, match="embedding: object: was packed for products, not for"):
        kernels.call(native.ThreadPool(1), "embedding", [tokens, out], [], [1.0], packed)
