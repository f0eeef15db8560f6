"""argmax, sample and top_logprobs with every ISA: against a float64 sampler written here."""

from __future__ import annotations

import numpy as np
import pytest
from native_isas import ISAS, Kernels
from sampling_reference import (
    Settings,
    check_samples,
    kept_masses,
    normal_logits,
    philox_uniform,
    sample,
)

VOCABULARIES = [1, 2, 7, 63, 64, 65, 1000, 1111, 49152]


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


def argmax(kernels: Kernels, logits: np.ndarray) -> np.ndarray:
    out = np.full(len(logits), -2, np.int32)
    kernels("argmax", [np.ascontiguousarray(logits, np.float32), out])
    return out


def test_uniform_is_philox_as_published():
    # The known answer of Random123's kat_vectors for an all-zero counter and key: 6627e8d5.
    assert philox_uniform(0, 0) == (0x6627E8D5 >> 8) * 2.0**-24


@pytest.mark.parametrize("vocabulary", [*VOCABULARIES, 151936, 262144])
def test_argmax_is_the_lowest_id_of_the_highest_logit(kernels, vocabulary):
    logits = np.stack([normal_logits(vocabulary, seed, num_distinct=4) for seed in range(6)])
    logits[1] = 2.0
    logits[2] = -np.inf
    logits[2, -1] = -1e30
    logits[3, -1] = 1e30
    np.testing.assert_array_equal(argmax(kernels, logits), logits.argmax(axis=1))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_with_nan_or_infinity_gives_minus_one(kernels, vocabulary, bad):
    logits = np.zeros((4, vocabulary), np.float32)
    logits[0, 0] = bad
    logits[1, vocabulary // 2] = bad
    logits[2, -1] = bad
    assert argmax(kernels, logits).tolist() == [-1, -1, -1, 0]
    for settings in (Settings(), Settings(0.0), Settings(top_k=2), Settings(top_p=0.5)):
        settings.seeds = range(4)
        sampled = sample(kernels, logits, settings)
        assert sampled[:3].tolist() == [-1, -1, -1] and sampled[3] >= 0


def test_a_row_of_minus_infinity_gives_minus_one_and_a_lone_logit_wins(kernels):
    logits = np.full((2, 300), -np.inf, np.float32)
    logits[1, 299] = -5.0
    for settings in (Settings(), Settings(0.0), Settings(top_k=3, top_p=0.9), Settings(top_p=0.9)):
        settings.seeds = [1, 2]
        assert sample(kernels, logits, settings).tolist() == [-1, 299]


@pytest.mark.parametrize(
    "settings",
    [Settings(0.0), Settings(top_p=0.0), Settings(top_k=1), Settings(1e-30), Settings(1e-40)],
)
def test_settings_that_leave_one_token_give_the_argmax(kernels, settings):
    logits = normal_logits(5000)
    settings.seeds = range(8)
    assert (sample(kernels, logits, settings) == logits.argmax()).all()


GRID = [
    Settings(),
    Settings(0.3),
    Settings(7.0),
    Settings(top_k=5),
    Settings(top_k=400),
    Settings(0.7, top_k=50, top_p=0.9, min_p=0.02),
    Settings(top_p=0.5),
    Settings(top_p=0.95),
    Settings(2.5, top_p=0.8),
    Settings(1e6, top_p=0.5),
    Settings(top_p=1e-7),
    Settings(top_p=0.9999),
    Settings(min_p=0.05),
    Settings(min_p=1.0),
    Settings(1.3, top_p=0.97, min_p=0.001),
    Settings(top_k=10**6, top_p=0.6),
]


@pytest.mark.parametrize("num_distinct", [0, 2])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_samples_are_the_inverse_cdf_of_the_kept_tokens(kernels, vocabulary, num_distinct):
    logits = normal_logits(vocabulary, vocabulary, num_distinct)
    for settings in GRID:
        settings.seeds = range(24)
        check_samples(kernels, logits, settings)


def test_seeds_and_positions_use_all_64_bits(kernels):
    logits = np.zeros(1000, np.float32)
    for position in (0, 1, 2**32, 2**63 + 5):
        settings = Settings(seeds=[0, 1, 2**32, 2**64 - 1], positions=np.uint64(position))
        check_samples(kernels, logits, settings)


@pytest.mark.parametrize("shape", ["equal", "ascending", "descending", "one peak", "two levels"])
@pytest.mark.parametrize("settings", [Settings(top_p=0.70012), Settings(top_k=100, top_p=0.7012)])
def test_hard_distributions_are_truncated_exactly(kernels, shape, settings):
    ids = np.arange(3000, dtype=np.float32)
    logits = {
        "equal": 0 * ids,
        "ascending": ids / 100,
        "descending": -ids / 100,
        "one peak": np.where(ids == 1234, 50.0, 0.0),
        "two levels": np.where(ids % 3 == 1, 1.0, 0.99999994),
    }[shape].astype(np.float32)
    settings.seeds = range(64)
    check_samples(kernels, logits, settings)


def test_ties_at_the_border_of_top_k_go_to_the_lowest_ids(kernels):
    logits = np.zeros(500, np.float32)
    logits[[400, 450]] = 1.0
    sampled = sample(kernels, logits, Settings(100.0, top_k=5, seeds=range(400)))
    assert set(sampled.tolist()) == {0, 1, 2, 400, 450}


def test_ties_at_the_border_of_top_p_go_to_the_lowest_ids(kernels):
    sampled = sample(kernels, np.zeros(400, np.float32), Settings(top_p=0.0124, seeds=range(400)))
    assert set(sampled.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("settings", [Settings(), Settings(0.8, top_k=40, top_p=0.9, min_p=0.01)])
def test_frequencies_follow_the_exact_distribution(kernels, settings):
    logits = normal_logits(200, seed=5) / 2
    settings.seeds = range(20000)
    counts = np.bincount(sample(kernels, logits, settings), minlength=200)
    wanted = kept_masses(logits, settings) * len(settings.seeds)
    assert (counts[wanted == 0] == 0).all()
    common = wanted >= 10
    chi_square = (((counts - wanted) ** 2)[common] / wanted[common]).sum()
    # Four standard deviations of chi-square with that many degrees of freedom; seeds are fixed.
    assert chi_square < common.sum() + 4 * np.sqrt(2 * common.sum())


@pytest.mark.parametrize("settings", [Settings(), Settings(top_p=0.9), Settings(top_k=50)])
def test_a_sample_does_not_depend_on_its_place_in_the_batch(kernels, settings):
    logits = np.stack([normal_logits(1111, seed) for seed in range(6)])
    settings.seeds = np.arange(6) + 100
    together = sample(kernels, logits, settings)
    for row in range(6):
        settings.seeds = [row + 100]
        assert sample(kernels, logits[row], settings)[0] == together[row]


def test_rows_of_one_call_keep_their_own_settings(kernels):
    logits = np.stack([normal_logits(777, seed) for seed in range(4)])
    mixed = Settings([0.0, 1.0, 0.5, 2.0], [0, 0, 20, 0], [1.0, 1.0, 0.9, 0.7], seeds=[1, 2, 3, 4])
    together = sample(kernels, logits, mixed)
    for row in range(4):
        own = Settings(
            mixed.temperature[row], mixed.top_k[row], mixed.top_p[row], seeds=[mixed.seeds[row]]
        )
        assert sample(kernels, logits[row], own)[0] == together[row]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("num_distinct", [0, 4])
def test_top_logprobs_match_a_sorted_log_softmax(kernels, vocabulary, num_distinct):
    logits = np.stack([normal_logits(vocabulary, seed, num_distinct) for seed in range(3)])
    logits[2, 1:] = -np.inf
    tokens, every = np.array([0, vocabulary - 1, 0], np.int32), np.arange(3, dtype=np.int32)
    x = logits.astype(np.float64)
    top = x.max(axis=1, keepdims=True)
    want = x - top - np.log(np.exp(x - top).sum(axis=1, keepdims=True))
    for count in {0, 1, min(5, vocabulary), min(20, vocabulary), min(vocabulary, 1200)}:
        own = np.full(3, np.nan, np.float32)
        ids = np.full((3, count), -2, np.int32)
        logprobs = np.full((3, count), np.nan, np.float32)
        kernels("top_logprobs", [logits, every, tokens, own, ids, logprobs])
        np.testing.assert_allclose(own, want[[0, 1, 2], tokens], rtol=1e-6, atol=2e-6)
        for row in range(3):
            order = np.lexsort((np.arange(vocabulary), -x[row]))[:count]
            np.testing.assert_array_equal(ids[row], order)
            np.testing.assert_allclose(logprobs[row], want[row, order], rtol=1e-6, atol=2e-6)


def test_top_logprobs_of_an_unusable_row_are_nan(kernels):
    logits = np.zeros((3, 100), np.float32)
    logits[0, 99] = np.nan
    logits[1, 0] = np.inf
    own, ids = np.zeros(3, np.float32), np.zeros((3, 2), np.int32)
    logprobs = np.zeros((3, 2), np.float32)
    every = np.arange(3, dtype=np.int32)
    kernels("top_logprobs", [logits, every, np.zeros(3, np.int32), own, ids, logprobs])
    assert np.isnan(own).tolist() == [True, True, False]
    assert ids.tolist() == [[-1, -1], [-1, -1], [0, 1]]
    assert np.isnan(logprobs).all(axis=1).tolist() == [True, True, False]
