"""Well-behaved clients in every dialect; each checks its answers."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

from bench.soak.raw_http import Answer, Await, Reset, request
from bench.soak.target_server import Inconclusive, SoakFailure, TargetServer

Scenario = Callable[[TargetServer, random.Random], Awaitable[None]]
JSON = {"Content-Type": "application/json"}
WORDS = (
    "river",
    "stone",
    "lamp",
    "seven",
    "green",
    "Mur",
    "été",
    "日本",
    "🙂",
    "\n",
    "{",
    "<|im_end|>",
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Mur", "Ob"]}, "km": {"type": "integer", "maximum": 9999}},
    "required": ["name", "km"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Graz", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def text(draw: random.Random, most: int = 12) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))


def sampling(draw: random.Random) -> dict[str, Any]:
    """Return some of the fields that all dialects share."""
    fields: dict[str, Any] = {
        "temperature": draw.choice([0, 0.7, 1.3, 2]),
        "top_p": draw.choice([0, 0.5, 1]),
        "top_k": draw.choice([-1, 1, 40]),
        "min_p": draw.choice([0, 0.1]),
        "repetition_penalty": draw.choice([0.9, 1, 1.2]),
        "dry_multiplier": draw.choice([0, 0.8]),
        "stop": draw.choice(["\n\n", [".", "seven"], None]),
        "seed": draw.randint(0, 2**40),
    }
    return {name: fields[name] for name in draw.sample(sorted(fields), draw.randint(0, 4))}


async def chat(target: TargetServer, draw: random.Random) -> None:
    body: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": text(draw)},
            {"role": "user", "content": text(draw, 60)},
        ],
        "max_tokens": draw.randint(1, 24),
        **sampling(draw),
    }
    if draw.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": draw.randint(0, 20), "n": draw.randint(1, 3)}
    if draw.random() < 0.3:
        new = SCHEMA | {"title": str(draw.random())}  # not a cached one
        schema = {"name": "river", "schema": new, "strict": True}
        body |= {"response_format": {"type": "json_schema", "json_schema": schema}}
    elif draw.random() < 0.3:
        function = {"name": "weather", "parameters": PARAMETERS}
        body |= {"tools": [{"type": "function", "function": function}]}
        body["tool_choice"] = draw.choice(["auto", "required", "none"])
    if draw.random() < 0.5:
        answer = await target.ask("POST", "/v1/chat/completions", body | {"stream": True})
        _check_stream(answer)
        return
    answer = await target.ask("POST", "/v1/chat/completions", body)
    choices = answer.json()["choices"]
    if len(choices) != body.get("n", 1):
        raise SoakFailure(f"{len(choices)} choices")
    for choice in choices:
        if "response_format" in body and choice["finish_reason"] == "stop" and "stop" not in body:
            json.loads(choice["message"]["content"])


async def completions(target: TargetServer, draw: random.Random) -> None:
    prompts = [text(draw, 40), [1000, 1001, 1002], [text(draw), text(draw)]]
    body: dict[str, Any] = {
        "prompt": draw.choice(prompts),
        "max_tokens": draw.randint(1, 24),
        "stream": draw.random() < 0.5,
        **sampling(draw),
    }
    if draw.random() < 0.2:
        body |= {"echo": True, "logprobs": draw.randint(0, 20)}
    if draw.random() < 0.2:
        body |= {"grammar": {"type": "regex", "value": draw.choice(["[a-z]{3}", "(ab)+c", "\\d+"])}}
    answer = await target.ask("POST", "/v1/completions", body)
    if body["stream"]:
        _check_stream(answer)


async def messages(target: TargetServer, draw: random.Random) -> None:
    body: dict[str, Any] = {
        "model": "default",
        "system": text(draw),
        "messages": [{"role": "user", "content": [{"type": "text", "text": text(draw, 40)}]}],
        "max_tokens": draw.randint(1, 24),
    }
    if draw.random() < 0.3:
        body |= {"tools": [{"name": "weather", "input_schema": PARAMETERS}]}
        body["tool_choice"] = draw.choice([{"type": "any"}, {"type": "auto"}])
    counted = await target.ask("POST", "/v1/messages/count_tokens", body)
    if draw.random() < 0.5:
        answer = await target.ask("POST", "/v1/messages", body | {"stream": True})
        if answer.events and json.loads(answer.events[-1])["type"] == "message_stop":
            return
        raise SoakFailure(f"the stream ends with {answer.body[-200:]!r}")
    usage = (await target.ask("POST", "/v1/messages", body)).json()["usage"]
    input_tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    if input_tokens != counted.json()["input_tokens"]:
        raise SoakFailure(f"{counted.json()} counted, but usage is {usage}")


async def responses(target: TargetServer, draw: random.Random) -> None:
    """Hold a conversation of two turns and delete it."""
    body = {"input": text(draw, 40), "max_output_tokens": draw.randint(1, 16)}
    first = (await target.ask("POST", "/v1/responses", body)).json()
    body = {"input": text(draw), "max_output_tokens": 8, "previous_response_id": first["id"]}
    second = await target.ask("POST", "/v1/responses", body | {"stream": True})
    last = second.events[-2] if second.events[-1:] == ["[DONE]"] else ""
    if not last or json.loads(last)["type"] not in ("response.completed", "response.incomplete"):
        raise SoakFailure(f"the stream ended with {second.body[-200:]!r}")
    for made in (first["id"], json.loads(last)["response"]["id"]):
        await target.ask("GET", f"/v1/responses/{made}/input_items")
        await target.ask("DELETE", f"/v1/responses/{made}")
        await target.ask("GET", f"/v1/responses/{made}", expect=(404,))


async def background(target: TargetServer, draw: random.Random) -> None:
    """Run a response in the background: poll to its end or cancel it, then delete it."""
    body = {"input": text(draw), "max_output_tokens": draw.randint(1, 40), "background": True}
    made = (await target.ask("POST", "/v1/responses", body)).json()["id"]
    if draw.random() < 0.4:
        await target.ask("POST", f"/v1/responses/{made}/cancel")
    await _wait_until_ended(target, made)
    await target.ask("DELETE", f"/v1/responses/{made}")


async def resumed(target: TargetServer, draw: random.Random) -> None:
    """Break off a stream and resume it: both parts together must be complete."""
    body = {"input": text(draw), "max_output_tokens": 30, "background": True, "stream": True}
    sent = request("POST", "/v1/responses", body)
    found = await target.talk(sent, Await(draw.randint(600, 6000)), Reset())
    events = [json.loads(event) for event in found[0].events[:-1]] if found else []
    if not events:
        raise Inconclusive
    made, seen = events[0]["response"]["id"], events[-1]["sequence_number"]
    path = f"/v1/responses/{made}?stream=true&starting_after={seen}"
    rest = await target.ask("GET", path)
    numbers = [json.loads(event)["sequence_number"] for event in rest.events if event != "[DONE]"]
    if numbers and numbers != list(range(seen + 1, seen + 1 + len(numbers))):
        raise SoakFailure(f"resumed after {seen}, the stream continued with {numbers}")
    await _wait_until_ended(target, made)
    await target.ask("DELETE", f"/v1/responses/{made}")


async def _wait_until_ended(target: TargetServer, made: str) -> None:
    for _ in range(600):
        status = (await target.ask("GET", f"/v1/responses/{made}")).json()["status"]
        if status not in ("queued", "in_progress"):
            return
        await asyncio.sleep(0.1)
    raise SoakFailure(f"{made} did not end")


async def embeddings(target: TargetServer, draw: random.Random) -> None:
    texts = [text(draw, 60) for _ in range(draw.randint(1, 8))]
    body = {"model": "embedding", "input": texts, "truncate_sequence": True}
    plain = (await target.ask("POST", "/v1/embeddings", body)).json()["data"]
    if len(plain) != len(texts):
        raise SoakFailure(f"{len(plain)} vectors for {len(texts)} texts")
    one = body | {"input": texts[-1], "encoding_format": "base64"}
    coded = (await target.ask("POST", "/v1/embeddings", one)).json()["data"][0]["embedding"]
    if len(base64.b64decode(coded)) != 4 * len(plain[0]["embedding"]):
        raise SoakFailure("the base64 vector has another length")


async def files(target: TargetServer, draw: random.Random) -> None:
    content = text(draw, 200).encode()
    parts = (
        b'--cut\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        b'--cut\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
        + content
        + b"\r\n--cut--\r\n"
    )
    form = {"Content-Type": "multipart/form-data; boundary=cut"}
    made = (await target.ask("POST", "/v1/files", parts, headers=form)).json()["id"]
    if (await target.ask("GET", f"/v1/files/{made}/content")).body != content:
        raise SoakFailure("the file's content changed")
    parts_of_message = [{"type": "file", "file": {"file_id": made}}, {"type": "text", "text": "?"}]
    body = {"messages": [{"role": "user", "content": parts_of_message}], "max_tokens": 2}
    await target.ask("POST", "/v1/chat/completions", body)
    await target.ask("GET", "/v1/files?limit=3")
    await target.ask("DELETE", f"/v1/files/{made}")
    await target.ask("GET", f"/v1/files/{made}/content", expect=(404,))


async def sessions(target: TargetServer, draw: random.Random) -> None:
    name = f"s{draw.randint(0, 2**40)}"
    for _ in range(2):
        body = {"session_id": name, "max_tokens": 3}
        body["messages"] = [{"role": "user", "content": text(draw)}]
        await target.ask("POST", "/v1/chat/completions", body)
    exported = (await target.ask("GET", f"/v1/sessions/{name}")).json()
    if len(exported["messages"]) != 4:
        raise SoakFailure(f"a session of two turns has {len(exported['messages'])} messages")
    await target.ask("PUT", f"/v1/sessions/{name}", exported)
    await target.ask("DELETE", f"/v1/sessions/{name}")
    await target.ask("GET", f"/v1/sessions/{name}", expect=(404,))


async def adapters(target: TargetServer, draw: random.Random) -> None:
    """Load an adapter, use it, replace it meanwhile, and unload it."""
    name = f"a{draw.randint(0, 2**40)}"
    load: dict[str, Any] = {"lora_name": name, "lora_path": draw.choice("01"), "model": "text"}
    refused = (409, 429)  # no free slot, or another load is running
    answer = await target.ask("POST", "/v1/load_lora_adapter", load, (200, *refused), JSON)
    if answer.status in refused:
        return
    body = {"model": name, "prompt": text(draw), "max_tokens": 12, "stream": True}
    load |= {"lora_path": draw.choice("01"), "load_inplace": True}
    asked, _ = await asyncio.gather(
        target.ask("POST", "/v1/completions", body),
        target.ask("POST", "/v1/load_lora_adapter", load, (200, *refused), JSON),
    )
    _check_stream(asked)
    await target.ask("GET", "/v1/lora_adapters?model=text")
    name_only = {"lora_name": name, "model": "text"}
    await target.ask("POST", "/v1/unload_lora_adapter", name_only, headers=JSON)
    await target.ask("POST", "/v1/completions", body, expect=(404,))


async def operations(target: TargetServer, draw: random.Random) -> None:
    """Request the pages of operators and tools."""
    paths = ("/v1/models", "/v1/models/text", "/metrics", "/api-doc/openapi.json", "/docs")
    await target.ask("GET", draw.choice(paths))
    await target.ask("GET", "/v1/system/info")
    await target.ask("GET", "/v1/skills")
    await target.ask("POST", "/v1/models/status", {"model_id": "text"})
    decision = {"decision": "approve"}
    await target.ask("POST", "/v1/agent/approvals/appr_0", decision, expect=(404,))


def _check_stream(answer: Answer) -> None:
    """Check that a stream of chunks ends correctly and without an error."""
    events = answer.events
    if events[-1:] != ["[DONE]"] or len(events) < 2:
        raise SoakFailure(f"the stream ends with {answer.body[-200:]!r}")
    if "error" in json.loads(events[-2]):
        raise SoakFailure(f"the stream ends with {events[-2][:200]}")


SCENARIOS: dict[str, tuple[int, Scenario]] = {
    "chat": (10, chat),
    "completions": (10, completions),
    "messages": (6, messages),
    "responses": (4, responses),
    "background": (4, background),
    "resumed": (4, resumed),
    "embeddings": (5, embeddings),
    "files": (2, files),
    "sessions": (2, sessions),
    "adapters": (2, adapters),
    "operations": (1, operations),
}
