"""Top-k and top-p of rows of every shape, for which a kernel narrows a band of logits; and sampling
of adjusted rows, against the exact distribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_isas import ISAS, Kernels, native
from sampling_reference import Settings, check_samples, kept_masses, normal_logits, sample

from penstock.kernels.native import NativeOps
from penstock.kernels.sampler_inputs import NOTHING_ALLOWED, SamplingRows, SeenTokens, TokenValues

WIDE = 20_000
LARGEST = np.finfo(np.float32).max


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


@pytest.fixture(params=ISAS)
def ops(request: pytest.FixtureRequest) -> NativeOps:
    return NativeOps.eager(native.ThreadPool(2), request.param)


def shaped(shape: str) -> np.ndarray:
    draw = np.random.default_rng(3)
    uniform, ids = draw.random(WIDE, np.float32), np.arange(WIDE)
    logits = {
        "level": uniform,
        "steps": np.round(normal_logits(WIDE) * 2) / 2,
        "equal": np.full(WIDE, 1.5),
        "cluster": np.where(ids == 777, 3.0, 1e-20 * uniform),
        "ascending": ids / WIDE,
        "descending": -ids / WIDE,
        "mostly forbidden": np.where(ids % 9 == 4, uniform, -np.inf),
        "few allowed": np.where(ids % 3000 == 4, uniform, -np.inf),
        "neighbours": np.float32(2) + np.spacing(np.float32(2)) * (ids % 3),
        "huge": LARGEST * (2 * uniform - 1),
        "two groups": np.where(uniform < 0.1, uniform + 5, uniform),
    }[shape]
    return logits.astype(np.float32)


SHAPES = [
    "level", "steps", "equal", "cluster", "ascending", "descending", "mostly forbidden",
    "few allowed", "neighbours", "huge", "two groups",
]  # fmt: skip
CUTS = [
    Settings(top_k=3),
    Settings(top_k=600),
    Settings(top_k=7001),
    Settings(top_k=WIDE - 1),
    Settings(top_p=0.01037),
    Settings(top_p=0.50013),
    Settings(2.0, top_p=0.97031),
    Settings(2.0, top_k=9000, top_p=0.80017, min_p=0.7),
    Settings(1.0, top_k=900, top_p=0.99),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_any_shape_are_truncated_like_a_full_sort(kernels, shape):
    logits = shaped(shape)
    for settings in CUTS:
        settings.seeds = range(16)
        check_samples(kernels, logits, settings)


@pytest.mark.parametrize("k", [1, 2, 600, 2500, 2501, WIDE - 1])
def test_top_k_keeps_k_tokens_at_a_border_of_equals(kernels, k):
    """At a temperature that makes all kept tokens equally likely, samples spread over them."""
    logits = shaped("steps")
    order = np.lexsort((np.arange(WIDE), -logits.astype(np.float64)))[:k]
    sampled = sample(kernels, logits, Settings(1e7, top_k=k, seeds=range(600)))
    assert set(sampled.tolist()) <= set(order.tolist())
    assert sampled.max() >= np.quantile(order, 0.95) and sampled.min() <= np.quantile(order, 0.05)


def chi_square_excess(counts: np.ndarray, masses: np.ndarray) -> float:
    """Return the deviations of chi-square from its mean, over the tokens that are expected ten
    times."""
    wanted = masses * counts.sum()
    assert (counts[wanted == 0] == 0).all()
    common = wanted >= 10
    statistic = (((counts - wanted) ** 2)[common] / wanted[common]).sum()
    return float((statistic - common.sum()) / np.sqrt(2 * common.sum()))


def adjusted_rows(count: int, settings: Settings) -> SamplingRows:
    """Return `count` rows of the same features at different seeds."""

    def column(value: float, dtype: type) -> np.ndarray:
        return np.full(count, value, dtype)

    def repeated(tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        starts = np.arange(count + 1, dtype=np.int32) * len(tokens)
        return starts.astype(np.int32), np.tile(np.array(tokens, np.int32), count)

    def listed(values: dict[int, float]) -> TokenValues:
        return TokenValues(
            *repeated(list(values)), np.tile(np.array(list(values.values()), np.float32), count)
        )

    starts, tokens = repeated([0, 1, 2, 3])
    return SamplingRows(
        column(settings.temperature, np.float32),
        column(settings.top_k, np.int32),
        column(settings.top_p, np.float32),
        column(settings.min_p, np.float32),
        np.arange(count, dtype=np.uint64),
        column(5, np.uint64),
        bias=listed({4: 2.0, 5: -100.0, 1: 0.5}),
        seen=SeenTokens(
            starts,
            tokens,
            np.tile(np.array([0, 1, 2, 3], np.int32), count),
            column(0.4, np.float32),
            column(0.3, np.float32),
            column(1.4, np.float32),
        ),
        dry=listed({6: 1.75, 7: 400.0}),
        masks=np.array([[0xFFFF0FFF, 0xFFFFFFFF]], np.uint32),
        mask_of=column(0, np.int32),
    )


def adjusted(logits: np.ndarray) -> np.ndarray:
    """Return the logits of a row adjusted as in `adjusted_rows`, in float64."""
    x = logits.astype(np.float64)
    x[4], x[5], x[1] = x[4] + 2, x[5] - 100, x[1] + 0.5
    for token, count in enumerate([0, 1, 2, 3]):
        x[token] -= (0.4 + 0.3 * count) * (count > 0)
        x[token] = x[token] / 1.4 if x[token] > 0 else x[token] * 1.4
    x[6], x[7] = x[6] - 1.75, x[7] - 400
    x[12:16] = -np.inf
    return x


@pytest.mark.parametrize("settings", [Settings(), Settings(0.8, top_k=20, top_p=0.9, min_p=0.01)])
def test_frequencies_follow_the_adjusted_distribution(ops, settings):
    logits, count = normal_logits(50, seed=5) / 2, 20_000
    tokens = ops.sample(np.tile(logits, (count, 1)), adjusted_rows(count, settings))
    masses = kept_masses(adjusted(logits), settings)
    assert abs(chi_square_excess(np.bincount(tokens, minlength=50), masses)) < 4


def test_an_adjusted_row_does_not_depend_on_its_neighbours(ops):
    rows = adjusted_rows(9, Settings(0.9, top_p=0.9))
    rows = replace(rows, mask_of=np.array([0, -1, 0, 0, -1, 0, 0, 0, -1], np.int32))
    logits = np.stack([normal_logits(50, seed) for seed in range(9)])
    together, changed = logits.copy(), logits.copy()
    tokens = ops.sample(together, rows)
    for index in range(9):
        alone = changed[index : index + 1]
        assert ops.sample(alone, rows.row(index))[0] == tokens[index]
        assert alone[0].tobytes() == together[index].tobytes()


def test_rows_without_features_leave_the_logits_unchanged(ops):
    rows = replace(adjusted_rows(2, Settings()), bias=None, seen=None, dry=None, masks=None)
    logits = np.stack([normal_logits(50, seed) for seed in range(2)])
    before = logits.copy()
    ops.sample(logits, replace(rows, mask_of=None))
    assert (logits == before).all()


def test_empty_mask_is_reported_for_greedy_and_random_rows(ops):
    rows = replace(adjusted_rows(2, Settings()), masks=np.zeros((1, 2), np.uint32))
    rows = replace(rows, temperature=np.array([0.0, 1.0], np.float32))
    for index in (slice(0, 1), slice(0, 2)):
        some = rows.row(0) if index.stop == 1 else rows
        logits = np.zeros((index.stop, 50), np.float32)
        assert (ops.sample(logits, some) == NOTHING_ALLOWED).all()
