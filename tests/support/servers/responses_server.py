"""The Responses API over a scripted loop and a real store, with checks of its streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock.dialog import (
    ArgumentsDelta,
    Event,
    GenerateRequest,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    Text,
    TextDelta,
    ToolCall,
    TurnEnded,
)
from penstock.store import Store
from tests.support.openapi_checks import check_event
from tests.support.servers.http_server import CREATED, USAGE, Script, Serving, Step, serving, spoken
from tests.support.stores import MovableClock, opened, store_settings

URL = "/v1/responses"
FUNCTION = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


def thinking_and_calling(request: GenerateRequest) -> Iterator[Event]:
    yield RunStarted(request.model or "", CREATED, 3)
    yield PartStarted(0, 0, "reasoning")
    yield ReasoningDelta(0, 0, "hm")
    yield PartEnded(0, 0, Reasoning("hm"))
    yield PartStarted(0, 1, "text")
    yield TextDelta(0, 1, "I look.")
    yield PartEnded(0, 1, Text("I look."))
    yield PartStarted(0, 2, "tool_call", "call_1", "weather")
    yield ArgumentsDelta(0, 2, '{"city":')
    yield ArgumentsDelta(0, 2, '"Graz"}')
    yield PartEnded(0, 2, ToolCall("call_1", "weather", '{"city":"Graz"}'))
    yield TurnEnded(0, "tool_calls", USAGE)
    yield RunEnded("completed", USAGE)


def cut_off(request: GenerateRequest) -> Iterator[Event]:
    yield RunStarted(request.model or "", CREATED, 3)
    yield PartStarted(0, 0, "text")
    yield TextDelta(0, 0, "Hel")
    yield PartEnded(0, 0, Text("Hel"))
    yield TurnEnded(0, "length", USAGE)
    yield RunEnded("incomplete", USAGE)


def failing(*last: Step) -> Script:
    """Return a script that writes "Hel", then these last steps."""

    def script(request: GenerateRequest) -> Iterator[Step]:
        yield RunStarted(request.model or "", CREATED, 3)
        yield PartStarted(0, 0, "text")
        yield TextDelta(0, 0, "Hel")
        yield from last

    return script


@asynccontextmanager
async def a_store(clock: MovableClock | None = None) -> AsyncIterator[Store]:
    """Open a new store whose clock matches the scripts."""
    with TemporaryDirectory(prefix="penstock-responses-") as folder:
        async with opened(store_settings(Path(folder)), clock or MovableClock()) as store:
            yield store


@asynccontextmanager
async def answering(
    script: Script = spoken("Hel", "lo", "!"),  # noqa: B008
    *,
    store: Store | None = None,
    **options: Any,
) -> AsyncIterator[Serving]:
    """Run a server; `store` None: a new one."""
    async with AsyncExitStack() as stack:
        if store is None:
            store = await stack.enter_async_context(a_store())
        yield await stack.enter_async_context(serving(script, store=store, **options))


async def create(server: Serving, status: int = 200, **fields: Any) -> dict[str, Any]:
    """POST a request with the input "hi" and these fields."""
    answer = await server.http.post(URL, json={"input": "hi"} | fields)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def get(server: Serving, id: str, status: int = 200) -> dict[str, Any]:
    answer = await server.http.get(f"{URL}/{id}")
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def stream(server: Serving, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of a streamed request."""
    answer = await server.http.post(URL, json={"input": "hi", "stream": True} | fields)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text)


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream, validated against the OpenAPI document."""
    events = parsed(text)
    for event in events:
        check_event("ResponseStreamEvent", event)
    return events


def parsed(text: str) -> list[dict[str, Any]]:
    """Parse the events of a stream; each name must equal the type in its data, and [DONE] must be
    last."""
    *blocks, done, rest = [b for b in text.split("\n\n") if not b.startswith(":")]
    assert (done, rest) == ("data: [DONE]", "")
    events = []
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == "event: " + event["type"]
        events.append(event)
    return events
