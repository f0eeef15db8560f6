"""Embeddings in embedded use, with a small real model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.generation.embeddings.embeddings import MAX_INPUTS
from penstock.llm import LLM
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = save_sentence_folder(tmp_path_factory.mktemp("bert"), small_body("Bert"))
    with LLM(str(folder), threads=2) as llm:
        yield llm


def test_texts_and_token_ids_give_a_row_each(llm: LLM) -> None:
    rows = llm.embed(["a b", [2, 4, 5, 3], "c"])
    assert rows.shape == (3, 64) and rows.dtype == np.float32
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(llm.embed("a b")[0], rows[0])
    assert np.array_equal(llm.embed([2, 4, 5, 3])[0], rows[0])


def test_more_inputs_than_one_request_takes_are_embedded(llm: LLM) -> None:
    rows = llm.embed(["a", "b"] * (MAX_INPUTS // 2 + 3))
    assert len(rows) == MAX_INPUTS + 6
    assert np.array_equal(rows[-2:], rows[:2])


def test_an_empty_list_gives_no_rows(llm: LLM) -> None:
    assert len(llm.embed([])) == 0


async def test_embedding_from_asyncio_is_the_same(llm: LLM) -> None:
    assert np.array_equal(await llm.aembed("a b"), llm.embed("a b"))


def test_long_input_is_an_error_without_truncation(llm: LLM) -> None:
    with pytest.raises(ContextLengthExceeded):
        llm.embed("a " * 100)
    assert np.array_equal(llm.embed("a " * 100, truncate=True), llm.embed("a " * 78))


def test_wrong_kinds_of_input_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequest):
        llm.embed(["a", ""])
    with pytest.raises(InvalidRequest):
        llm.embed([["a"]])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="no text"):
        llm.generate("a")
