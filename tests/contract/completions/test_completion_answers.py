"""Legacy completions as clients see them, over real HTTP on loopback."""

from __future__ import annotations

import json

from penstock.dialog import (
    PartEnded,
    PartStarted,
    RunEnded,
    RunStarted,
    Text,
    TextDelta,
    TokenLogprob,
    TurnEnded,
)
from tests.support.servers.http_server import (
    CREATED,
    FINGERPRINT,
    MODEL,
    USAGE,
    frames_of,
    serving,
    spoken,
)

PROMPT = {"prompt": "Once"}


async def test_answer_has_the_shape_of_the_reference_api():
    async with serving() as server:
        answer = (await server.http.post("/v1/completions", json=PROMPT)).json()
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("usage")["total_tokens"] == 11
    assert answer == {
        "object": "text_completion",
        "created": CREATED,
        "model": MODEL,
        "system_fingerprint": FINGERPRINT,
        "choices": [{"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop"}],
    }


async def test_stream_equals_the_unstreamed_answer_with_usage_on_its_last_chunk():
    body = PROMPT | {"n": 2, "logprobs": 1}
    async with serving(spoken("a", "é", "🎈b")) as server:
        whole = (await server.http.post("/v1/completions", json=body)).json()
        streamed = await server.http.post("/v1/completions", json=body | {"stream": True})
    frames = frames_of(streamed.text)
    assert frames.pop() == "[DONE]"
    chunks = [json.loads(frame) for frame in frames]
    assert ["usage" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    for choice in whole["choices"]:
        parts = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"] == "aé🎈b"
        joined = {key: [] for key in choice["logprobs"]}
        for part in parts:
            for key, values in (part["logprobs"] or {}).items():
                joined[key] += values
        assert joined == choice["logprobs"]
    assert whole["choices"][0]["logprobs"] == {
        "tokens": ["a", "é", "🎈b"],
        "token_logprobs": [-0.25] * 3,
        "top_logprobs": [{"alt0": -1.0, token: -0.25} for token in ("a", "é", "🎈b")],
        "text_offset": [0, 1, 2],
    }


async def test_the_first_token_of_an_echoed_prompt_has_no_logprob():
    def script(request):
        assert request.echo and request.limits.max_tokens == 0
        scored = (
            TokenLogprob(7, b"On", None, (), 0),
            TokenLogprob(8, b"ce", -0.5, ((9, b"ly", -1.0),), 2),
        )
        yield RunStarted(MODEL, CREATED, 2)
        yield PartStarted(0, 0, "text")
        yield TextDelta(0, 0, "Once", scored)
        yield PartEnded(0, 0, Text("Once"))
        yield TurnEnded(0, "length", USAGE)
        yield RunEnded("incomplete", USAGE)

    body = PROMPT | {"echo": True, "logprobs": 1, "max_tokens": 0}
    async with serving(script) as server:
        whole = (await server.http.post("/v1/completions", json=body)).json()
        streamed = await server.http.post("/v1/completions", json=body | {"stream": True})
        refused = await server.http.post("/v1/completions", json=body | {"echo": False})
        official = await server.openai.completions.create(
            model=MODEL, prompt="Once", echo=True, logprobs=1, max_tokens=0
        )
    (choice,) = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Once", "length")
    assert choice["logprobs"] == {
        "tokens": ["On", "ce"],
        "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {"ly": -1.0, "ce": -0.5}],
        "text_offset": [0, 2],
    }
    first = json.loads(frames_of(streamed.text)[0])["choices"][0]
    assert (first["text"], first["logprobs"]) == ("Once", choice["logprobs"])
    assert refused.json()["error"]["param"] == "max_tokens"
    assert official.choices[0].logprobs.text_offset == [0, 2]


async def test_prompt_may_be_text_one_text_in_a_list_or_token_ids():
    async with serving() as server:
        for prompt, decoded in (
            ("Once", "Once"),
            (["Once"], "Once"),
            ([1, 2, 3], (1, 2, 3)),
            ([[1, 2, 3]], (1, 2, 3)),
        ):
            answer = await server.http.post("/v1/completions", json={"prompt": prompt})
            assert answer.status_code == 200
            assert server.loop.requests[-1].prompt == decoded


async def test_several_prompts_make_choices_prompt_by_prompt():
    def script(request):
        yield RunStarted(MODEL, CREATED, 2)
        for choice in range(request.num_choices):
            yield PartStarted(choice, 0, "text")
            yield TextDelta(choice, 0, f"{choice}")
            yield PartEnded(choice, 0, Text(f"{choice}"))
            yield TurnEnded(choice, "stop", USAGE)
        yield RunEnded("completed", USAGE)

    body = {"prompt": ["a", [1, 2], "c"], "n": 2}
    async with serving(script) as server:
        whole = (await server.http.post("/v1/completions", json=body)).json()
        streamed = await server.http.post("/v1/completions", json=body | {"stream": True})
        assert server.loop.requests[-1].prompts == ("a", (1, 2), "c")
        assert server.loop.requests[-1].prompt is None
    assert [choice["text"] for choice in whole["choices"]] == list("012345")
    chunks = [json.loads(frame) for frame in frames_of(streamed.text)[:-1]]
    assert ["usage" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_the_likeliest_answers_are_not_streamed():
    async with serving() as server:
        body = PROMPT | {"best_of": 3}
        assert (await server.http.post("/v1/completions", json=body)).status_code == 200
        assert server.loop.requests[-1].best_of == 3
        refused = await server.http.post("/v1/completions", json=body | {"stream": True})
        assert refused.json()["error"]["param"] == "best_of"
        refused = await server.http.post("/v1/completions", json=body | {"n": 4})
        assert refused.json()["error"]["param"] == "best_of"


async def test_official_client_streams_completions():
    async with serving() as server:
        chunks = await server.openai.completions.create(model=MODEL, prompt="x", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in chunks]) == "Hello!"
