"""The references against external facts: published vectors, torch's own functions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops import all_ops
from penstock.kernels.ops.adjust_reference import adjust_logits
from penstock.kernels.ops.dequantize import dequantize
from penstock.kernels.ops.linear import quantized
from penstock.kernels.ops.rope_cache import rotate
from penstock.kernels.ops.sampling_reference import philox, sample, top_logprobs, uniform
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.sampler_inputs import (
    FAILED,
    NOTHING_ALLOWED,
    SamplingRows,
    SeenTokens,
    TokenValues,
)
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.weights import Affine


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_vectors(counter, key, words):
    assert tuple(int(word[0]) for word in philox(counter, key)) == words


def test_uniform_numbers_use_every_bit_of_seed_and_position():
    base = uniform(np.array([5], np.uint64), np.array([9], np.uint64))
    for bit in range(64):
        flip = np.array([1 << bit], np.uint64)
        assert uniform(np.array([5], np.uint64) ^ flip, np.array([9], np.uint64)) != base
        assert uniform(np.array([5], np.uint64), np.array([9], np.uint64) ^ flip) != base


def _rows(count, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0):
    return SamplingRows(
        np.full(count, temperature, np.float32),
        np.full(count, top_k, np.int32),
        np.full(count, top_p, np.float32),
        np.full(count, min_p, np.float32),
        np.full(count, seed, np.uint64),
        np.arange(count, dtype=np.uint64),
    )


def test_samples_follow_the_distribution():
    probabilities = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05], dtype=torch.float64)
    draws = 4000
    tokens = sample(probabilities.log().repeat(draws, 1), _rows(draws, seed=11))
    counts = torch.bincount(tokens.long(), minlength=5).double()
    expected = probabilities * draws
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 18.5  # 4 degrees of freedom: exceeded by one in a thousand seeds


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 3}, {0, 1, 3}),  # 0 and 4 are equal: the lower id stays
        ({"top_p": 0.39}, {3}),  # 3 alone reaches it
        ({"top_p": 0.6}, {1, 3}),
        ({"min_p": 0.5}, {1, 3}),
        ({"top_k": 4, "top_p": 0.86}, {0, 1, 3}),  # 0.77 of the 0.89 that top-k keeps
        ({"top_p": 0.0}, {3}),
        ({"temperature": 0.0}, {3}),
    ],
)
def test_filters_keep_exactly_what_the_contract_says(settings, allowed):
    probabilities = torch.tensor([0.12, 0.25, 0.11, 0.40, 0.12], dtype=torch.float64)
    tokens = sample(probabilities.log().repeat(400, 1), _rows(400, **settings))
    assert set(tokens.tolist()) == allowed


def _listed(*rows):
    """Return the lists of rows given as token -> number."""
    starts = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    tokens = np.array([token for row in rows for token in row], np.int32)
    values = np.array([value for row in rows for value in row.values()], np.float32)
    return TokenValues(starts, tokens, values)


def test_logits_are_changed_in_the_documented_order():
    """Token 2 gets bias, both penalties of two occurrences, repetition, DRY; only the prompt has
    token 1."""
    seen = SeenTokens(
        np.array([0, 2], np.int32),
        np.array([1, 2], np.int32),
        np.array([0, 2], np.int32),
        *(np.array([value], np.float32) for value in (0.5, 0.25, 2.0)),
    )
    rows = replace(
        _rows(1),
        bias=_listed({2: 7.0}),
        seen=seen,
        dry=_listed({0: 4.0, 2: 10.0}),
        masks=np.array([[0b0111]], np.uint32),
        mask_of=np.array([0], np.int32),
    )
    logits = torch.tensor([[1.0, -1.0, 2.0, 9.0]], dtype=torch.float64)
    assert adjust_logits(logits, rows).tolist() == [0]
    assert logits.tolist() == [[-3.0, -2.0, (2 + 7 - 1.0) / 2 - 10, -np.inf]]
    assert (
        sample(torch.tensor([[1.0, -1.0, 2.0, 9.0]]), replace(rows, temperature=np.zeros(1)))[0]
        == 1
    )


def test_empty_mask_and_unusable_logits_give_different_codes():
    masks = np.array([[0b01], [0b1000]], np.uint32)  # the second is out of range
    rows = replace(_rows(4), masks=masks, mask_of=np.array([0, 1, 0, -1], np.int32))
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0], [-np.inf, 1.0], [0.0, np.nan]])
    assert sample(logits, rows).tolist() == [0, NOTHING_ALLOWED, FAILED, FAILED]


def test_a_row_does_not_depend_on_its_batch():
    rows = replace(_rows(3), bias=_listed({5: 1.0}, {}, {6: 2.0, 7: 3.0}))
    last = rows.row(2)
    assert last.position.tolist() == [2] and last.seen is None
    assert last.bias.starts.tolist() == [0, 2]
    assert last.bias.tokens.tolist() == [6, 7] and last.bias.values.tolist() == [2.0, 3.0]
    assert rows.row(1).bias.tokens.tolist() == []


def test_temperature_near_zero_picks_the_highest():
    logits = RandomInputs(3).normal(50, 40).double()
    tokens = sample(logits, _rows(50, temperature=1e-3))
    assert tokens.tolist() == logits.argmax(dim=1).tolist()


def test_top_logprobs_match_log_softmax():
    logits = RandomInputs(4).normal(5, 30)
    rows, tokens = torch.tensor([3, 0]), torch.tensor([7, 29])
    own, ids, values = top_logprobs(logits, rows, tokens, 3)
    truth = torch.log_softmax(logits[[3, 0]], 1)
    assert own.tolist() == pytest.approx([float(truth[0, 7]), float(truth[1, 29])])
    best = truth.topk(3, dim=1)
    assert ids.tolist() == best.indices.tolist()
    torch.testing.assert_close(values, best.values)


def test_affine_weights_follow_the_documented_layout():
    q = np.array([[0x21, 0x43] + [0] * 14], np.uint8)
    scale, minimum = np.array([[0.5]], np.float16), np.array([[-1.0]], np.float16)
    direct = dequantize(Affine(4, 32, q, scale, minimum), torch.float64)
    assert direct[0, :5].tolist() == [-0.5, 0.0, 0.5, 1.0, -1.0]
    zero_point = dequantize(Affine(4, 32, q, scale, None, 8), torch.float64)
    assert zero_point[0, :5].tolist() == [-3.5, -3.0, -2.5, -2.0, -4.0]
    eight = np.arange(288, dtype=np.uint8).reshape(1, 288) % 64
    two_level = Affine(
        8, 16, eight, np.arange(-9, 9, dtype=np.int8).reshape(1, 18), None, 32,
        np.array([[0.25, 2.0]], np.float16),
    )  # fmt: skip
    weights = dequantize(two_level, torch.float64)[0]
    for k in (0, 17, 255, 256, 287):
        assert weights[k] == (0.25 if k < 256 else 2.0) * (k // 16 - 9) * (int(eight[0, k]) - 32)


def test_activations_are_quantized_half_to_even_with_the_scale_of_least_squares():
    x = torch.zeros(1, 64)
    x[0, :5] = torch.tensor([127.0, 0.5, 1.5, -2.5, 3.4])
    x[0, 32:34] = torch.tensor([254.0, 3.0])
    expected = torch.zeros(1, 64)
    fitted = (127**2 + 1.5 * 2 + 2.5 * 2 + 3.4 * 3) / (127**2 + 2 * 4 + 9)
    expected[0, :5] = torch.tensor([127.0, 0.0, 2.0, -2.0, 3.0]) * fitted
    expected[0, 32:34] = torch.tensor([127.0, 2.0]) * (254 * 127 + 3 * 2) / (127**2 + 4)
    torch.testing.assert_close(quantized(x), expected, rtol=1e-6, atol=0)


def test_rotation_keeps_scores_a_function_of_distance():
    angle = torch.outer(torch.arange(20.0), torch.tensor([1.0, 0.1]))
    rope = torch.cat((angle.cos(), angle.sin()), dim=1).double()
    q, k = RandomInputs(1).normal(1, 1, 6).double(), RandomInputs(2).normal(1, 1, 6).double()

    def score(i, j):
        return float((rotate(q, rope[i : i + 1]) * rotate(k, rope[j : j + 1])).sum())

    assert score(3, 1) == pytest.approx(score(19, 17))
    assert score(3, 1) != pytest.approx(score(3, 2))
    assert torch.equal(rotate(q, rope[5:6])[..., 4:], q[..., 4:])


def test_rope_then_attention_equals_torch_attention():
    heads, tokens, block_size = (4, 2, 16), 21, 8
    source = RandomInputs(6)
    step = source.step(((0, tokens),), block_size)
    qkv = source.normal(tokens, 8 * 16).double()
    still = torch.cat((torch.ones(tokens, 8), torch.zeros(tokens, 8)), dim=1).double()
    blocks = int(step.block_tables.max()) + 1
    cache = LayerCache(
        torch.full((blocks, 2, 16, block_size), float("nan"), dtype=torch.float64),
        torch.full((blocks, 2, block_size, 16), float("nan"), dtype=torch.float64),
    )
    ops = ReferenceOps(torch.float64)
    q = ops.rope_cache(qkv, still, step, cache, heads, None)
    ours = ops.attention(q, step, cache, heads, 0.25, 0)
    q, k, v = (part.transpose(0, 1) for part in qkv.view(tokens, 8, 16).split((4, 2, 2), dim=1))
    theirs = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=0.25, enable_gqa=True
    )
    torch.testing.assert_close(ours, theirs.transpose(0, 1).reshape(tokens, -1))


def test_single_token_steps_are_the_chunk():
    step: StepInputs[torch.Tensor] = RandomInputs(0).step(((0, 5), (30, 1)), 16)
    assert step.positions.tolist() == [0, 1, 2, 3, 4, 30]
    assert step.slots[0] == step.block_tables[0, 0] * 16
    assert step.slots[5] == step.block_tables[1, 1] * 16 + 14
    assert step.sample_rows.tolist() == [4, 5]


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_inputs_are_reproducible_and_costs_positive(op):
    for case in op.cases:
        first, second = case.make_inputs(1), case.make_inputs(1)
        assert repr(first) == repr(second)
        assert op.cost(first).moved_bytes > 0
