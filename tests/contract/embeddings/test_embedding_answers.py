"""`POST /v1/embeddings` as clients see it, over real HTTP, a real engine and a small model."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from penstock.agent import AgentLoop
from penstock.api.route_table.table import OPERATIONS
from penstock.generation import Generator
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, Serving, serving, serving_folder

URL = "/v1/embeddings"
LETTERS = {"a": 4, "b": 5, "c": 6}  # token ids of the small vocabulary; [CLS] is 2, [SEP] is 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    return save_sentence_folder(folder, small_body("Bert"), max_tokens=16)


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[Serving]:
    async with serving_folder(folder) as (server, _):
        yield server


async def vectors(server: Serving, **body: Any) -> list[list[float]]:
    answer = await server.http.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    return [entry["embedding"] for entry in answer.json()["data"]]


async def refused(server: Serving, **body: Any) -> dict[str, Any]:
    answer = await server.http.post(URL, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


async def test_the_example_of_the_explorer_is_answered(server: Serving) -> None:
    (operation,) = (one for one in OPERATIONS if one.path == URL)
    answer = await server.http.post(URL, json=operation.example)
    assert answer.status_code == 200


async def test_the_model_card_says_that_the_model_embeds_texts(server: Serving) -> None:
    card = (await server.http.get(f"/v1/models/{MODEL}")).json()
    assert card["architecture"] == {
        "input_modalities": ["text"],
        "output_modalities": ["embeddings"],
    }


async def test_answer_has_the_shape_of_the_reference_api(server: Serving) -> None:
    answer = (await server.http.post(URL, json={"input": "a b c"})).json()
    (entry,) = answer.pop("data")
    assert answer == {
        "object": "list",
        "model": MODEL,
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    numbers = entry.pop("embedding")
    assert entry == {"object": "embedding", "index": 0}
    assert len(numbers) == 64
    assert np.linalg.norm(numbers) == pytest.approx(1, abs=1e-6)


async def test_several_texts_are_answered_in_their_order_as_each_alone(server: Serving) -> None:
    texts = ["a", "b c", "cat cat cat", "z"]
    body = {"input": texts}
    answer = (await server.http.post(URL, json=body)).json()
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2, 3]
    assert answer["usage"] == {"prompt_tokens": 3 + 4 + 5 + 3, "total_tokens": 15}
    for text, entry in zip(texts, answer["data"], strict=True):
        assert [entry["embedding"]] == await vectors(server, input=text)


async def test_token_ids_are_taken_as_they_are(server: Serving) -> None:
    framed = [2, LETTERS["a"], LETTERS["b"], 3]
    text = await vectors(server, input="a b")
    assert await vectors(server, input=framed) == text
    assert await vectors(server, input=[framed]) == text
    assert await vectors(server, input=[framed, [4]]) == [*text, *await vectors(server, input=[4])]
    assert await vectors(server, input=framed[1:3]) != text


async def test_base64_holds_the_same_numbers_as_little_endian_floats(server: Serving) -> None:
    plain = await vectors(server, input=["a", "b"], encoding_format="float")
    for numbers, text in zip(
        plain, await vectors(server, input=["a", "b"], encoding_format="base64"), strict=True
    ):
        assert isinstance(text, str)
        assert np.allclose(struct.unpack("<64f", base64.b64decode(text)), numbers, atol=1e-7)


async def test_without_an_encoding_numbers_are_written(server: Serving) -> None:
    assert await vectors(server, input="a", encoding_format=None) == await vectors(
        server, input="a"
    )


@pytest.mark.parametrize("value", [64, 0, "64", [], {}, False])
async def test_dimensions_of_any_value_are_refused(server: Serving, value: Any) -> None:
    error = await refused(server, input="a", dimensions=value)
    assert (error["param"], error["code"]) == ("dimensions", "unsupported_value")


@pytest.mark.parametrize("value", ["me", 5, None, {"any": ["thing"]}])
async def test_user_of_any_value_has_no_effect(server: Serving, value: Any) -> None:
    assert await vectors(server, input="a", user=value, unknown=1) == await vectors(
        server, input="a"
    )


async def test_what_is_too_long_is_an_error_that_counts(server: Serving) -> None:
    error = await refused(server, input=["a", "a " * 15])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    assert "16 tokens" in error["message"] and "17 tokens" in error["message"]
    error = await refused(server, input=[4] * 17, truncate_sequence=False)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    error = await refused(server, input="a" * 100_000)
    assert error["code"] == "context_length_exceeded"


async def test_truncation_keeps_the_start_and_the_frame(server: Serving) -> None:
    start, rest = "a b c d e f g a b c d e f g", " x y z"
    whole = await server.http.post(URL, json={"input": start + rest, "truncate_sequence": True})
    assert whole.json()["usage"]["prompt_tokens"] == 16
    assert [whole.json()["data"][0]["embedding"]] == await vectors(server, input=start)
    assert await vectors(server, input=[5] * 16 + [6] * 9, truncate_sequence=True) == await vectors(
        server, input=[5] * 16
    )
    huge = await vectors(server, input="a b " * 50_000, truncate_sequence=True)
    assert huge == await vectors(server, input="a b " * 7)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (None, "input"),
        ("", "input"),
        ([], "input"),
        (["a", ""], "input[1]"),
        ([[]], "input[0]"),
        (["a", []], "input[1]"),
        (5, "input"),
        ({"text": "a"}, "input"),
        (["a", 5], "input[1]"),
        ([4, "a"], "input[1]"),
        ([[4, "a"]], "input[0][1]"),
        ([4, -1], "input[1]"),
        ([4, 1.5], "input[1]"),
        (["a"] * 2049, "input"),
    ],
)
async def test_wrong_input_is_refused_by_its_place(server: Serving, given: Any, field: str) -> None:
    assert (await refused(server, input=given))["param"] == field


async def test_a_token_id_outside_the_vocabulary_is_refused(server: Serving) -> None:
    error = await refused(server, input=[[4], [64]])
    assert error["param"] == "input" and "below 64" in error["message"]


@pytest.mark.parametrize(
    ("field", "value"), [("encoding_format", "int8"), ("encoding_format", 1), ("model", 3),
                         ("truncate_sequence", "yes")]
)  # fmt: skip
async def test_other_wrong_fields_are_refused_by_name(
    server: Serving, field: str, value: Any
) -> None:
    assert (await refused(server, input="a", **{field: value}))["param"] == field


async def test_models_are_found_by_name_and_by_default(server: Serving) -> None:
    for name in (MODEL, "default"):
        answer = await server.http.post(URL, json={"input": "a", "model": name})
        assert answer.json()["model"] == MODEL
    answer = await server.http.post(URL, json={"input": "a", "model": "other"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


async def test_an_embedding_model_refuses_to_write(server: Serving) -> None:
    for url, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a", "stream": True}),
    ):
        answer = await server.http.post(url, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "unsupported_model"


async def test_a_model_that_writes_refuses_to_embed(server: Serving) -> None:
    writer = AgentLoop(Generator(ScriptedEngine([]), tiny_tokenizer()))
    async with serving(models={MODEL: writer}) as writing:
        error = await refused(writing, input="a")
    assert (error["code"], error["param"]) == ("unsupported_model", "model")


async def test_the_official_client_gets_numbers_from_both_encodings(server: Serving) -> None:
    by_default = await server.openai.embeddings.create(model="default", input=["a b", "c"])
    as_floats = await server.openai.embeddings.create(
        model="default", input=["a b", "c"], encoding_format="float"
    )
    assert [entry.index for entry in by_default.data] == [0, 1]
    assert by_default.usage.prompt_tokens == 7
    for ours, other in zip(by_default.data, as_floats.data, strict=True):
        assert np.allclose(ours.embedding, other.embedding, atol=1e-7)
    named = await server.openai.embeddings.create(model="default", input="c", user="u")
    assert np.allclose(named.data[0].embedding, by_default.data[1].embedding, atol=1e-7)
    long = " ".join("abc" * 20)
    cut = await server.openai.embeddings.create(
        model="default", input=long, extra_body={"truncate_sequence": True}
    )
    assert cut.usage.prompt_tokens == 16
    with pytest.raises(openai.BadRequestError, match="this model takes 16 tokens"):
        await server.openai.embeddings.create(model="default", input=long)
    with pytest.raises(openai.BadRequestError) as refusal:
        await server.openai.embeddings.create(model="default", input="a", dimensions=8)
    assert refusal.value.param == "dimensions"
    with pytest.raises(openai.NotFoundError):
        await server.openai.embeddings.create(model="other", input="a")


async def test_a_full_queue_is_a_429_that_says_when_to_come_back(folder: Path) -> None:
    many = {"input": ["a b c d e f g h i j k l m n"] * 2048}
    async with serving_folder(folder, max_queue=1, max_num_batched_tokens=16) as (server, engine):
        first = asyncio.ensure_future(server.http.post(URL, json=many))
        while (await engine.gauges()).sequences_waiting == 0:
            await asyncio.sleep(0)
        second = await server.http.post(URL, json={"input": "a"})
        assert second.status_code == 429
        assert int(second.headers["retry-after"]) >= 1
        assert (await first).status_code == 200


async def test_a_client_that_leaves_takes_its_request_with_it(folder: Path) -> None:
    many = {"input": ["a b c d e f g h i j k l m n"] * 2048}
    async with serving_folder(folder, max_num_batched_tokens=16) as (server, engine):
        left = asyncio.ensure_future(server.http.post(URL, json=many))
        while (await engine.gauges()).sequences_waiting == 0:
            await asyncio.sleep(0)
        left.cancel()
        while (await engine.gauges()).completed_abort == 0:
            await asyncio.sleep(0)
        assert (await engine.gauges()).sequences_waiting == 0


async def test_a_prompt_of_the_model_goes_before_every_text(tmp_path: Path, folder: Path) -> None:
    prompts = {"prompts": {"query": "c a t "}, "default_prompt_name": "query"}
    prompted = save_sentence_folder(tmp_path, small_body("Bert"), prompts=prompts)
    async with serving_folder(prompted) as (server, _):
        with_prompt = await vectors(server, input="b")
        by_ids = await vectors(server, input=[2, 6, 4, 23, 5, 3])
    assert with_prompt == by_ids
