"""`POST /v1/rerank` as clients see it, over real HTTP, a real engine and a small model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.agent import AgentLoop
from penstock.generation import Generator
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body
from tests.support.checkpoints.reranker_checkpoints import (
    expected_logit,
    save_reranker,
    small_reranker,
)
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, Serving, serving, serving_folder

URL = "/v1/rerank"
BODY = {"query": "c a t", "documents": ["a b", "cat", "x y z", "c a t", ""]}
LONG = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a BERT of width 64 with a context of 80 tokens."""
    return save_reranker(tmp_path_factory.mktemp("bert"), small_reranker("Bert"))


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[Serving]:
    async with serving_folder(folder) as (server, _):
        yield server


async def ranked(server: Serving, **body: Any) -> list[dict[str, Any]]:
    answer = await server.http.post(URL, json=BODY | body)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


async def refused(server: Serving, **body: Any) -> dict[str, Any]:
    answer = await server.http.post(URL, json=BODY | body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


async def test_the_model_card_says_that_the_model_reranks(server: Serving) -> None:
    card = (await server.http.get(f"/v1/models/{MODEL}")).json()
    assert card["architecture"] == {"input_modalities": ["text"], "output_modalities": ["rerank"]}


async def test_answer_has_the_shape_that_the_services_share(server: Serving) -> None:
    answer = (await server.http.post(URL, json=BODY)).json()
    results = answer.pop("results")
    assert answer.pop("id").startswith("rerank-")
    tokens = 5 * (3 + 3) + 2 + 1 + 3 + 3
    assert answer == {
        "object": "list",
        "model": MODEL,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    assert all(set(result) == {"index", "relevance_score"} for result in results)
    assert sorted(result["index"] for result in results) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("url", ["/v2/rerank", "/rerank"])
async def test_other_addresses_give_the_same(server: Serving, url: str) -> None:
    answer = await server.http.post(url, json=BODY)
    assert answer.json()["results"] == await ranked(server)


async def test_scores_are_sigmoids_of_the_logits_of_transformers(server: Serving) -> None:
    model = small_reranker("Bert")
    pair = [2, 6, 4, 23, 3, 4, 5, 3]  # [CLS] c a t [SEP] a b [SEP]
    logit = float(expected_logit(model, pair, 5))
    (score,) = [r["relevance_score"] for r in await ranked(server) if r["index"] == 0]
    assert score == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)


async def test_the_best_comes_first_and_equals_by_their_index(server: Serving) -> None:
    documents = ["x y z", "a b", "cat", "a b", "x y z", "a b"]
    results = await ranked(server, documents=documents)
    order = [(-result["relevance_score"], result["index"]) for result in results]
    assert order == sorted(order)
    scores = {result["index"]: result["relevance_score"] for result in results}
    assert scores[1] == scores[3] == scores[5] and scores[0] == scores[4]
    assert len(set(scores.values())) == 3


async def test_a_score_does_not_depend_on_its_neighbours(server: Serving) -> None:
    together = {result["index"]: result["relevance_score"] for result in await ranked(server)}
    for index, document in enumerate(BODY["documents"]):
        (alone,) = await ranked(server, documents=[document])
        assert alone == {"index": 0, "relevance_score": together[index]}


async def test_top_n_gives_so_many_of_the_best(server: Serving) -> None:
    everything = await ranked(server)
    assert await ranked(server, top_n=2) == everything[:2]
    assert await ranked(server, top_n=100) == everything
    assert await ranked(server, top_n=None) == everything


async def test_documents_are_quoted_where_it_is_asked_for(server: Serving) -> None:
    for result in await ranked(server, return_documents=True):
        assert result["document"] == {"text": BODY["documents"][result["index"]]}


async def test_documents_may_be_objects_with_a_text(server: Serving) -> None:
    objects = [{"text": text, "title": "x"} for text in BODY["documents"]]
    assert await ranked(server, documents=objects) == await ranked(server)
    mixed = [objects[0], *BODY["documents"][1:]]
    assert await ranked(server, documents=mixed) == await ranked(server)


async def test_query_and_document_are_told_apart(server: Serving) -> None:
    (one,) = await ranked(server, query="a b", documents=["c d"])
    (other,) = await ranked(server, query="c d", documents=["a b"])
    assert one["relevance_score"] != other["relevance_score"]


async def test_a_long_document_is_cut_and_the_query_is_not(server: Serving) -> None:
    start = " ".join(LONG.split()[: 80 - 6])
    answer = (await server.http.post(URL, json=BODY | {"documents": [LONG]})).json()
    assert answer["usage"]["prompt_tokens"] == 80
    assert answer["results"] == await ranked(server, documents=[start])
    huge = await ranked(server, documents=[LONG * 3000])
    assert huge == answer["results"]


async def test_what_may_not_be_cut_is_refused_by_its_place(server: Serving) -> None:
    error = await refused(server, documents=["a", LONG], truncate_sequence=False)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "documents[1]")
    assert "80 tokens" in error["message"] and "leaves 74" in error["message"]
    error = await refused(server, documents=["a " * 100_000], truncate_sequence=False)
    assert error["param"] == "documents[0]"


@pytest.mark.parametrize("words", [77, 78, 100_000])
async def test_a_query_that_leaves_no_room_is_refused(server: Serving, words: int) -> None:
    error = await refused(server, query="a " * words)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "query")


async def test_the_longest_query_leaves_room_for_one_token(server: Serving) -> None:
    answer = await server.http.post(URL, json={"query": "a " * 76, "documents": ["b c", ""]})
    assert answer.json()["usage"]["prompt_tokens"] == 80 + 79


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"query": None}, "query", "missing_required_parameter"),
        ({"query": ""}, "query", "invalid_value"),
        ({"query": ["a"]}, "query", "invalid_type"),
        ({"documents": None}, "documents", "missing_required_parameter"),
        ({"documents": []}, "documents", "invalid_value"),
        ({"documents": "a"}, "documents", "invalid_type"),
        ({"documents": ["a"] * 2049}, "documents", "invalid_value"),
        ({"documents": ["a", 5]}, "documents[1]", "invalid_type"),
        ({"documents": ["a", None]}, "documents[1]", "invalid_type"),
        ({"documents": [{"txt": "a"}]}, "documents[0].text", "missing_required_parameter"),
        ({"documents": [{"text": 5}]}, "documents[0].text", "invalid_type"),
        ({"top_n": 0}, "top_n", "invalid_value"),
        ({"top_n": "2"}, "top_n", "invalid_type"),
        ({"return_documents": "yes"}, "return_documents", "invalid_type"),
        ({"truncate_sequence": 1}, "truncate_sequence", "invalid_type"),
        ({"model": 3}, "model", "invalid_type"),
    ],
)
async def test_wrong_fields_are_refused_by_name(
    server: Serving, body: dict[str, Any], field: str, code: str
) -> None:
    error = await refused(server, **body)
    assert (error["param"], error["code"]) == (field, code)


async def test_fields_of_other_services_have_no_effect(server: Serving) -> None:
    others = {"max_tokens_per_doc": 1, "rank_fields": ["text"], "max_chunks_per_doc": 2}
    assert await ranked(server, **others, priority=0, unknown=1) == await ranked(server)


async def test_models_are_found_by_name_and_by_default(server: Serving) -> None:
    for name in (MODEL, "default"):
        answer = await server.http.post(URL, json=BODY | {"model": name})
        assert answer.json()["model"] == MODEL
    answer = await server.http.post(URL, json=BODY | {"model": "other"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_an_encoder_has_no_adapters(server: Serving) -> None:
    error = await refused(server, adapter="style")
    assert (error["param"], error["code"]) == ("adapter", "lora_runtime_unavailable")


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a", "stream": True}),
        ("/v1/embeddings", {"input": "a"}),
        (
            "/v1/messages/count_tokens",
            {"model": "default", "messages": [{"role": "user", "content": "a"}]},
        ),
    ],
)
async def test_a_reranker_refuses_everything_else(
    server: Serving, url: str, body: dict[str, Any]
) -> None:
    answer = await server.http.post(url, json=body)
    assert answer.status_code == 400
    assert "this model reranks" in answer.text


async def test_a_model_that_writes_refuses_to_rerank() -> None:
    writer = AgentLoop(Generator(ScriptedEngine([]), tiny_tokenizer()))
    async with serving(models={MODEL: writer}) as writing:
        error = await refused(writing)
    assert (error["code"], error["param"]) == ("unsupported_model", "model")


async def test_an_embedding_model_refuses_to_rerank(tmp_path: Path) -> None:
    embedder = save_sentence_folder(tmp_path, small_body("Bert"))
    async with serving_folder(embedder) as (embedding, _):
        error = await refused(embedding)
    assert (error["code"], error["param"]) == ("unsupported_model", "model")


async def test_a_decoder_reranks_by_its_last_token(tmp_path: Path) -> None:
    model = small_reranker("Qwen3")
    async with serving_folder(save_reranker(tmp_path, model)) as (server, _):
        (result,) = await ranked(server, query="a", documents=["b c"])
    logit = float(expected_logit(model, [2, 4, 3, 5, 6, 3], 6))
    assert result["relevance_score"] == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)


async def test_a_full_queue_is_a_429_that_says_when_to_come_back(folder: Path) -> None:
    many = BODY | {"documents": ["a b c d e f g"] * 2048}
    async with serving_folder(folder, max_queue=1, max_num_batched_tokens=80) as (server, engine):
        first = asyncio.ensure_future(server.http.post(URL, json=many))
        while (await engine.gauges()).sequences_waiting == 0:
            await asyncio.sleep(0)
        second = await server.http.post(URL, json=BODY)
        assert second.status_code == 429
        assert int(second.headers["retry-after"]) >= 1
        assert (await first).status_code == 200


async def test_a_client_that_leaves_takes_its_request_with_it(folder: Path) -> None:
    many = BODY | {"documents": ["a b c d e f g"] * 2048}
    async with serving_folder(folder, max_num_batched_tokens=80) as (server, engine):
        left = asyncio.ensure_future(server.http.post(URL, json=many))
        while (await engine.gauges()).sequences_waiting == 0:
            await asyncio.sleep(0)
        left.cancel()
        while (await engine.gauges()).completed_abort == 0:
            await asyncio.sleep(0)
        assert (await engine.gauges()).sequences_waiting == 0


async def test_the_request_is_counted_under_its_route(server: Serving) -> None:
    await ranked(server)
    lines = (await server.http.get("/metrics")).text.splitlines()
    assert any(URL in line and MODEL in line for line in lines)


async def test_documents_whose_scores_are_all_one_are_ordered_by_what_tells_them(
    server: Serving, tmp_path: Path
) -> None:
    """Scores are 1.0 from a logit of 37 on."""
    model = small_reranker("Bert")
    with torch.no_grad():
        model.classifier.bias += 100
    async with serving_folder(save_reranker(tmp_path, model)) as (moved, _):
        results = await ranked(moved)
    assert {result["relevance_score"] for result in results} == {1.0}
    order = [result["index"] for result in await ranked(server)]
    assert [result["index"] for result in results] == order != sorted(order)
