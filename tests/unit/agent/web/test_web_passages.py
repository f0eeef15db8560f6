"""Division of texts into passages, their ranking and their choice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.agent.web.passages import (
    GAP,
    Passage,
    choose_passages,
    join_passages,
    split_text,
)
from penstock.agent.web.ranking import MAX_EMBEDDED, Bm25Reranker, EmbeddingReranker
from penstock.base.errors import Unavailable


@given(st.text(alphabet="ab. \n", max_size=300), st.integers(2, 40))
def test_split_text_keeps_all_words_in_order(text: str, size: int) -> None:
    passages = split_text(text, size)
    assert all(0 < len(passage) <= size for passage in passages)
    assert "".join("".join(passages).split()) == "".join(text.split())


def test_passages_end_at_paragraphs_then_sentences_then_words() -> None:
    assert split_text("aaaa bbbb\n\ncc dd eeee", 14) == ["aaaa bbbb", "cc dd eeee"]
    assert split_text("aaaa bbbb. cc dd eeee", 14) == ["aaaa bbbb.", "cc dd eeee"]
    assert split_text("aaaa bbbb cc dd eeee", 14) == ["aaaa bbbb cc", "dd eeee"]
    assert split_text("a" * 30, 14) == ["a" * 14, "a" * 14, "a" * 2]


def passage(page: int, position: int, size: int = 10) -> Passage:
    return Passage(page, position, "x" * size)


def test_best_passages_are_chosen_first_until_the_budget_is_used() -> None:
    passages = [passage(0, 0), passage(0, 1), passage(1, 0), passage(1, 1)]
    budget = 2 * (10 + len(GAP))
    chosen = choose_passages(passages, [0.1, 3.0, 0.2, 5.0], budget)
    assert chosen == [passages[3], passages[1]]


def test_smaller_passage_fills_the_rest_of_the_budget() -> None:
    passages = [passage(0, 0, 50), passage(0, 1, 100), passage(0, 2, 10)]
    assert choose_passages(passages, [3.0, 2.0, 1.0], 80) == [passages[0], passages[2]]
    assert choose_passages(passages, [3.0, 2.0, 1.0], -5) == []


def test_irrelevant_passages_are_left_out_except_the_beginnings_of_pages() -> None:
    passages = [passage(0, 0), passage(0, 1), passage(1, 0), passage(1, 1)]
    assert choose_passages(passages, [0, 0, 0, 0], 1000) == [passages[0], passages[2]]


def test_passages_of_a_page_are_joined_in_its_order() -> None:
    parts = [Passage(0, 4, "e"), Passage(0, 0, "a"), Passage(0, 1, "b")]
    assert join_passages(parts) == f"a\nb{GAP}e"
    assert join_passages([]) == ""


async def test_bm25_prefers_the_passage_with_the_words_of_the_query() -> None:
    passages = ["the river flows", "a penstock carries water to turbines", "cats and dogs"]
    scores = await Bm25Reranker().scores("Penstock WATER", passages)
    assert max(range(3), key=lambda index: scores[index]) == 1 and scores[2] == 0


async def test_bm25_ranks_scripts_without_spaces() -> None:
    scores = await Bm25Reranker().scores("東京", ["今日は東京に行きます", "今日は晴れです"])
    assert scores[0] > scores[1]


@pytest.mark.parametrize(
    ("query", "passages"),
    [("", ["a b"]), ("?!", ["a b"]), ("word", []), ("word", [""]), ("word", ["...", ""]),
     ("word", ["other"])],
)  # fmt: skip
async def test_bm25_scores_nothing_without_common_words(query: str, passages: list[str]) -> None:
    assert await Bm25Reranker().scores(query, passages) == [0.0] * len(passages)


async def embed_vowels(texts: Sequence[str]) -> list[list[float]]:
    """Embeddings: the numbers of the letters a and e."""
    return [[text.count("a"), text.count("e")] for text in texts]


async def test_embeddings_rank_by_cosine_similarity() -> None:
    reranker = EmbeddingReranker(embed_vowels, Bm25Reranker())
    scores = await reranker.scores("aaa", ["eee", "aa", "ae", "zz"])
    assert scores == pytest.approx([0.0, 1.0, 0.5**0.5, 0.0])


async def test_only_the_best_passages_of_bm25_are_embedded() -> None:
    embedded: list[Sequence[str]] = []

    async def embed(texts: Sequence[str]) -> list[list[float]]:
        embedded.append(texts)
        return [[1.0]] * len(texts)

    passages = ["nothing here"] * MAX_EMBEDDED + ["the penstock"]
    scores = await EmbeddingReranker(embed, Bm25Reranker()).scores("penstock", passages)
    assert len(embedded[0]) == 1 + MAX_EMBEDDED and "the penstock" in embedded[0]
    assert scores.count(0.0) == 1 and scores[-1] == pytest.approx(1.0)


async def test_bm25_ranks_if_the_embedding_model_fails() -> None:
    async def embed(texts: Sequence[str]) -> list[list[float]]:
        raise Unavailable("the engine is restarting")

    passages = ["the penstock", "cats"]
    expected = await Bm25Reranker().scores("penstock", passages)
    assert await EmbeddingReranker(embed, Bm25Reranker()).scores("penstock", passages) == expected
