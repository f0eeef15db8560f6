"""Encoded weights: their error beside other encoders, and hostile numbers."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from penstock import _native
from penstock.quant.dequantize import dequantize
from penstock.quant.encode.encoder import encode
from penstock.quant.encode.type_names import ENCODED, FLOATS, K_QUANTS, parse_type
from penstock.quant.gguf.ggml_types import TYPES

POOL = _native.ThreadPool(2)
QUANTIZED = [name for name in ENCODED if name not in FLOATS]

# The relative squared error of llama.cpp's encoder (ggml_quantize_chunk, build 11549) for the same
# normally distributed weights, without and with importances, each weighted by them.
LLAMA_CPP = {
    "Q4_0": (0.007436, 0.004911),
    "Q4_1": (0.006115, 0.002951),
    "Q5_0": (0.00183, 0.001207),
    "Q5_1": (0.001447, 0.0006869),
    "Q8_0": (2.882e-05, 2.844e-05),
    "Q2_K": (0.08768, 0.03787),
    "Q3_K": (0.02295, 0.01428),
    "Q4_K": (0.005106, 0.003074),
    "Q5_K": (0.001317, 0.0008219),
    "Q6_K": (0.0003168, 0.0002106),
    "IQ4_NL": (0.005851, 0.003935),
    "IQ4_XS": (0.005934, 0.00406),
    "MXFP4": (0.01303, 0.01388),
}


def weights(rows: int = 64, columns: int = 1024) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32) / 50


def importances(columns: int = 1024) -> np.ndarray:
    return np.exp(np.random.default_rng(1).standard_normal(columns) * 1.5).astype(np.float32)


def decoded(name: str, raw: np.ndarray) -> np.ndarray:
    """Return what the `gguf` package reads from encoded rows."""
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])


def error(name: str, raw: np.ndarray, of: np.ndarray, importance: np.ndarray | float = 1) -> float:
    left = decoded(name, raw).astype(np.float64) - of
    return float((importance * left**2).sum() / (importance * of.astype(np.float64) ** 2).sum())


def test_each_type_has_an_encoder() -> None:
    assert set(QUANTIZED) == set(_native.ENCODED_TYPES)
    assert set(ENCODED) <= set(TYPES)


@pytest.mark.parametrize("name", QUANTIZED)
def test_error_is_no_larger_than_that_of_llama_cpp(name: str) -> None:
    plain, weighted = LLAMA_CPP[name]
    assert error(name, encode(name, weights(), pool=POOL), weights()) <= plain
    raw = encode(name, weights(), importances(), pool=POOL)
    assert error(name, raw, weights(), importances()) <= weighted


@pytest.mark.parametrize("name", ENCODED)
def test_kernels_compute_with_the_numbers_that_the_file_has(name: str) -> None:
    raw = encode(name, weights(3, 512), pool=POOL)
    matrix = TYPES[name].convert(raw.reshape(-1), (3, 512))
    np.testing.assert_array_equal(dequantize(matrix), decoded(name, raw))


@pytest.mark.parametrize("name", ENCODED)
def test_rows_do_not_depend_on_their_neighbours_or_on_threads(name: str) -> None:
    columns = TYPES[name].block * 5 if name not in FLOATS else 160
    whole = encode(name, weights(40, columns), importances(columns), pool=POOL)
    alone = _native.ThreadPool(1)
    for row in (0, 17, 39):
        one = encode(name, weights(40, columns)[row : row + 1], importances(columns), pool=alone)
        np.testing.assert_array_equal(one[0], whole[row])


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize(
    "fill", ["zeros", "ones", "negative", "outlier", "tiny", "subnormal", "large", "alternating"]
)
def test_unusual_rows_are_encoded_within_the_range_of_their_numbers(name: str, fill: str) -> None:
    rows = {
        "zeros": np.zeros(512),
        "ones": np.ones(512),
        "negative": np.full(512, -0.3),
        "outlier": np.where(np.arange(512) == 77, 300.0, 0.01),
        "tiny": np.random.default_rng(2).standard_normal(512) * 1e-9,
        "subnormal": np.full(512, 1e-42),
        "large": np.where(np.arange(512) % 2, 65_504.0, -65_504.0),
        "alternating": np.where(np.arange(512) % 2, 1.0, 0.0),
    }
    row = rows[fill].astype(np.float32)[None]
    read = decoded(name, encode(name, row, pool=POOL))
    assert np.isfinite(read).all()
    smallest = 2.0**-24  # of float16, the type of scales
    assert np.abs(read - row).max() <= np.ptp(np.append(row, 0)) / 2 + smallest
    if fill == "zeros":
        assert not read.any()


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e6])
def test_a_weight_that_the_type_cannot_hold_is_refused(name: str, value: float) -> None:
    wrong = weights(2, 256)
    wrong[1, 200] = value
    with pytest.raises(ValueError, match=r"not all weights are finite|a weight is 1e"):
        encode(name, wrong, pool=POOL)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_wrong_importance_is_refused(value: float) -> None:
    wrong = importances(256)
    wrong[3] = value
    with pytest.raises(ValueError, match="importances"):
        encode("Q4_K", weights(2, 256), wrong, pool=POOL)


def test_an_importance_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="256 columns"):
        encode("Q4_K", weights(2, 256), importances(32), pool=POOL)


@pytest.mark.parametrize("name", QUANTIZED)
def test_columns_without_importance_still_have_a_near_level(name: str) -> None:
    """A block whose importances are all zero counts as one whose importances are all equal."""
    none = np.zeros(256, np.float32)
    same = encode(name, weights(2, 256), none, pool=POOL)
    np.testing.assert_array_equal(same, encode(name, weights(2, 256), pool=POOL))
    none[::2] = 1
    assert error(name, encode(name, weights(2, 256), none, pool=POOL), weights(2, 256)) < 0.3


@pytest.mark.parametrize("name", K_QUANTS)
def test_numbers_of_the_type_itself_are_nearly_kept(name: str) -> None:
    read = decoded(name, encode(name, weights(8, 512), pool=POOL))
    again = error(name, encode(name, read, pool=POOL), read)
    assert again < error(name, encode(name, weights(8, 512), pool=POOL), weights(8, 512)) / 4


@pytest.mark.parametrize(
    ("text", "name"),
    [("q4_k", "Q4_K"), ("Q4K", "Q4_K"), ("q8-0", "Q8_0"), ("iq4nl", "IQ4_NL"), ("bf16", "BF16")],
)
def test_spellings_of_type_names(text: str, name: str) -> None:
    assert parse_type(text) == name


@pytest.mark.parametrize("text", ["", "q4", "Q4_K_X", "int4", "TQ1_0", "Q8_K"])
def test_other_names_are_no_types(text: str) -> None:
    assert parse_type(text) is None
