"""Reranking in embedded use, with a small real model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.base.errors import InvalidRequest
from penstock.llm import LLM
from tests.support.checkpoints.reranker_checkpoints import save_reranker, small_reranker

DOCUMENTS = ["a b", "cat", "x y z"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = save_reranker(tmp_path_factory.mktemp("bert"), small_reranker("Bert"))
    with LLM(str(folder), threads=2) as llm:
        yield llm


def test_documents_come_by_falling_relevance(llm: LLM) -> None:
    results = llm.rerank("c a t", DOCUMENTS)
    assert sorted(result.index for result in results) == [0, 1, 2]
    scores = [result.score for result in results]
    assert scores == sorted(scores, reverse=True) and 0 < scores[-1] < scores[0] < 1
    assert llm.rerank("c a t", DOCUMENTS, top_n=1) == results[:1]


async def test_reranking_from_asyncio_is_the_same(llm: LLM) -> None:
    assert await llm.arerank("c a t", DOCUMENTS) == llm.rerank("c a t", DOCUMENTS)


def test_a_bare_string_is_one_document(llm: LLM) -> None:
    assert llm.rerank("c a t", DOCUMENTS[1]) == llm.rerank("c a t", DOCUMENTS[1:2])


def test_long_documents_are_cut(llm: LLM) -> None:
    assert llm.rerank("a", ["b " * 500]) == llm.rerank("a", ["b " * 76])


def test_invalid_rerank_arguments_are_refused(llm: LLM) -> None:
    for query, documents, top_n in (("", ["a"], None), ("a", [], None), ("a", ["b"], 0)):
        with pytest.raises(InvalidRequest):
            llm.rerank(query, documents, top_n)
    with pytest.raises(InvalidRequest):
        llm.rerank("a", ["b"] * 2049)
    with pytest.raises(InvalidRequest):
        llm.rerank("a", [5])  # type: ignore[list-item]


def test_a_reranker_does_nothing_else(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="reranks"):
        llm.embed("a")
    with pytest.raises(InvalidRequest, match="reranks"):
        llm.generate("a")
