"""The choice of a draft vocabulary, and sampling from the logits of its tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock.kernels.ops.sampling_reference import sample
from penstock.kernels.sampler_inputs import SamplingRows, SeenTokens, TokenValues
from penstock.runtime.drafts.draft_vocabulary import (
    DraftVocabulary,
    PassBytes,
    draft_vocabulary,
    frequent_ids,
)
from penstock.runtime.drafts.vocabulary import VocabularyTokens

VOCAB, ROWS = 150, 400


def tokens_of(texts: list[str], special: set[int]) -> VocabularyTokens:
    return VocabularyTokens(dict(enumerate(texts)), frozenset(special))


def test_special_tokens_are_chosen_first_and_unused_ones_never() -> None:
    texts = [f"word{id}" for id in range(90)]
    texts += ["<|im_end|>", "<unused7>", "<|reserved_special_token_3|>", "<SPECIAL_20>", "<think>"]
    chosen = frequent_ids(tokens_of(texts, set(range(90, 95))), 10, len(texts))
    assert sorted(chosen) == [*range(8), 90, 94]


def test_an_eighth_of_the_tokens_are_characters_wherever_they_are() -> None:
    texts = [f"word{id}" for id in range(90)] + list("etaoinshrdlu")
    chosen = frequent_ids(tokens_of(texts, set()), 32, len(texts))
    assert sorted(chosen) == [*range(28), 90, 91, 92, 93]


def test_tokens_without_a_row_are_not_chosen() -> None:
    tokens = tokens_of([f"word{id}" for id in range(20)], {19})
    assert sorted(frequent_ids(tokens, 50, 12)) == list(range(12))


def test_a_draft_head_must_save_a_share_of_a_step() -> None:
    """Qwen3.5-0.8B reads 798 MB in a step and 22 MB in a draft pass before the head of 270 MB."""
    qwen = PassBytes(798, 22, 270, 248_320)
    assert qwen.saves(32_768) and not qwen.saves(230_000)
    assert not qwen.saves(300_000)
    assert not PassBytes(33_000, 500, 780, 151_936).saves(32_768)


def test_the_limit_follows_from_the_tokens_that_exist() -> None:
    tokens = tokens_of([f"word{id}" for id in range(1000)], set())
    found = draft_vocabulary(tokens, 100, PassBytes(600, 100, 300, 1000))
    assert found.ids.tolist() == list(range(100))
    assert found.most_outside == pytest.approx(0.54) and found.head_bytes == 30


@pytest.mark.parametrize("length", [1, 3, 5])
@pytest.mark.parametrize("rate", [0.8, 0.93, 1.0])
def test_the_limit_is_near_the_share_at_which_both_heads_are_equally_fast(
    length: int, rate: float
) -> None:
    def speed(rate: float, pass_bytes: float) -> float:
        return sum(rate**place for place in range(length + 1)) / (798 + length * pass_bytes)

    cost = PassBytes(798, 22, 270, 248_320)
    limit = 2 * cost.saving(32_768)
    small = 22 + 270 * 32_768 / 248_320
    assert speed(rate * (1 - limit + 0.15), small) > speed(rate, 292)
    assert speed(rate * (1 - limit - 0.15), small) < speed(rate, 292)


def test_the_head_follows_the_text_of_the_rows() -> None:
    vocabulary = DraftVocabulary(np.array([0, 2, 4, 6], np.int32), most_outside=0.3)
    known, other = np.array([0, 2, 4, 6], np.int32), np.array([1, 900, 3, 6], np.int32)
    assert vocabulary.head([known]) == "draft"
    assert vocabulary.head([other]) == "whole"
    assert vocabulary.head([known, known, other]) == "draft"  # 25 % of all
    assert vocabulary.head([known, other]) == "whole"


def lists(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and tokens of lists of 0 to 20 distinct tokens per row."""
    each = [random.permutation(VOCAB)[: random.integers(0, 21)] for _ in range(ROWS)]
    starts = np.concatenate([[0], np.cumsum([len(one) for one in each])]).astype(np.int32)
    return starts, np.concatenate(each).astype(np.int32)


def test_samples_are_those_of_logits_without_the_other_tokens() -> None:
    random = np.random.default_rng(0)
    logits = (2 * random.normal(size=(ROWS, VOCAB))).astype(np.float32)
    starts, tokens = lists(random)
    values = TokenValues(starts, tokens, random.normal(size=len(tokens)).astype(np.float32))
    seen_starts, seen_tokens = lists(random)
    ones = np.ones(ROWS, np.float32)
    seen = SeenTokens(
        seen_starts,
        seen_tokens,
        random.integers(0, 4, len(seen_tokens)).astype(np.int32),
        0.5 * ones,
        0.2 * ones,
        1.3 * ones,
    )
    rows = SamplingRows(
        temperature=random.choice([0.0, 0.7, 1.0], ROWS).astype(np.float32),
        top_k=random.choice([0, 12], ROWS).astype(np.int32),
        top_p=random.choice([1.0, 0.9], ROWS).astype(np.float32),
        min_p=random.choice([0.0, 0.05], ROWS).astype(np.float32),
        seed=random.integers(0, 2**60, ROWS).astype(np.uint64),
        position=np.arange(ROWS, dtype=np.uint64),
        bias=values,
        seen=seen,
        dry=replace(values, values=np.abs(values.values)),
        masks=random.integers(0, 2**32, (7, 5), dtype=np.uint32),
        mask_of=random.integers(-1, 7, ROWS).astype(np.int32),
    )
    ids = np.sort(random.permutation(VOCAB)[:70]).astype(np.int32)
    alone = np.full_like(logits, -np.inf)
    alone[:, ids] = logits[:, ids]
    expected = sample(torch.from_numpy(alone), rows).numpy()
    restricted = DraftVocabulary(ids, 1.0).sampling(rows)
    places = sample(torch.from_numpy(logits[:, ids].copy()), restricted).numpy()
    assert (places >= 0).all() and len(set(places.tolist())) > 40
    assert ids[places].tolist() == expected.tolist()
