"""A server whose model writes a given text, and its answers in every dialect, streamed or not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from penstock.agent import AgentLoop
from penstock.generation import Generator
from penstock.text.tool_parsers import TOOL_SYNTAXES, AnswerSyntax
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, Serving, frames_of, serving

PARAMETERS = {"type": "object", "properties": {"numbers": {"type": "array"}}}
HI = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def text_server(
    tokens: str | Sequence[int], syntax: str = "hermes"
) -> AsyncIterator[Serving]:
    """Run a server whose model writes `tokens` (for a text: its bytes), then its end token.
    `syntax`: the tool-call format of the model."""
    script = list(tokens.encode()) if isinstance(tokens, str) else list(tokens)
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES[syntax])
    generator = Generator(
        ScriptedEngine(script), tiny_tokenizer(), tiny_template(), None, answer_syntax
    )
    loop = AgentLoop(generator)
    try:
        async with serving(models={MODEL: loop}) as server:
            yield server
    finally:
        loop.close()


async def posted(server: Serving, path: str, body: dict[str, Any]) -> str:
    answer = await server.http.post(path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text


async def chat(server: Serving, **fields: Any) -> dict[str, Any]:
    """Return `finish`, `text` and `calls` [(name, arguments)] of a chat completion."""
    function = {"name": "calc", "parameters": PARAMETERS}
    tools = {"tools": [{"type": "function", "function": function}]}
    text = await posted(server, "/v1/chat/completions", {"messages": HI} | tools | fields)
    if not fields.get("stream"):
        choice = json.loads(text)["choices"][0]
        message = choice["message"]
        made = [call["function"] for call in message.get("tool_calls", ())]
        calls = [(call["name"], call["arguments"]) for call in made]
        return {
            "finish": choice["finish_reason"],
            "text": message["content"] or "",
            "calls": calls,
        }
    found: dict[str, Any] = {"finish": None, "text": "", "calls": []}
    for frame in frames_of(text)[:-1]:
        choice = json.loads(frame)["choices"][0]
        found["finish"] = choice["finish_reason"]
        found["text"] += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls", ()):
            function = call["function"]
            if "name" in function:
                found["calls"].append((function["name"], ""))
            name, arguments = found["calls"][call["index"]]
            found["calls"][call["index"]] = (name, arguments + function["arguments"])
    return found


async def response(server: Serving, **fields: Any) -> dict[str, Any]:
    """Return `status` and `items` [(type, status, name or text, arguments)] of a response. For a
    stream, the items of its `output_item.done` events, which must be those of the resource."""
    tools = {"tools": [{"type": "function", "name": "calc", "parameters": PARAMETERS}]}
    text = await posted(server, "/v1/responses", {"input": "hi"} | tools | fields)
    if not fields.get("stream"):
        whole = json.loads(text)
        return {"status": whole["status"], "items": list(map(_item, whole["output"]))}
    events = [json.loads(b.split("\ndata: ")[1]) for b in text.split("\n\n") if "\ndata: " in b]
    done = [_item(e["item"]) for e in events if e["type"] == "response.output_item.done"]
    last = events[-1]["response"]
    assert done == list(map(_item, last["output"]))
    return {"status": last["status"], "items": done}


def _item(item: dict[str, Any]) -> tuple[str, ...]:
    if item["type"] == "function_call":
        return ("function_call", item["status"], item["name"], item["arguments"])
    return (item["type"], item["status"], item["content"][0]["text"], "")


async def message(server: Serving, **fields: Any) -> dict[str, Any]:
    """Return `stop` and `content` of a message: [("text", text) or (name, input)]."""
    tools = {"tools": [{"name": "calc", "input_schema": PARAMETERS}]}
    body = {"messages": HI, "max_tokens": 500} | tools | fields
    text = await posted(server, "/v1/messages", body)
    if not fields.get("stream"):
        whole = json.loads(text)
        return {"stop": whole["stop_reason"], "content": list(map(_block, whole["content"]))}
    blocks: list[dict[str, Any]] = []
    stop = None
    for block in text.removesuffix("\n\n").split("\n\n"):
        event = json.loads(block.split("\ndata: ")[1])
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"] | {"input": ""})
            case "content_block_delta":
                delta, block_at = event["delta"], blocks[event["index"]]
                key = "text" if delta["type"] == "text_delta" else "input"
                block_at[key] += delta.get("text", delta.get("partial_json"))
            case "content_block_stop":
                if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = json.loads(blocks[-1]["input"])
            case "message_delta":
                stop = event["delta"]["stop_reason"]
    return {"stop": stop, "content": list(map(_block, blocks))}


def _block(block: dict[str, Any]) -> tuple[str, Any]:
    return ("text", block["text"]) if block["type"] == "text" else (block["name"], block["input"])
