"""Functions that send complete responses and parse query strings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

import orjson
from starlette.types import Scope, Send

from penstock.api.http.cancel_scope import CancelScope, ScopeCancelled
from penstock.api.http.errors import ClientDisconnected
from penstock.base.errors import InvalidRequest

JSON: Final = "application/json"
PLAIN_TEXT: Final = "text/plain; charset=utf-8"
BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False, "": False}


async def send_json(body: bytes, send: Send, *, status: int = 200) -> None:
    """Send `body`, which is encoded JSON."""
    await send_text(body, send, status=status, content_type=JSON)


async def send_value(value: Any, send: Send, *, status: int = 200) -> None:
    """Encode a value as JSON and send it."""
    await send_json(orjson.dumps(value), send, status=status)


async def send_text(
    body: bytes, send: Send, *, status: int = 200, content_type: str = PLAIN_TEXT
) -> None:
    """Send a body with its Content-Type and Content-Length."""
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_empty(send: Send) -> None:
    """Send status 200 with an empty body."""
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body"})


async def with_stall_timeout(
    sending: Awaitable[None], scope: Scope, stall_timeout_s: float
) -> None:
    """Await `sending`, which sends a part of a response. If the client reads nothing for
    `stall_timeout_s` seconds, close its connection and raise ClientDisconnected."""
    # Before Python 3.12, asyncio.wait_for loses a cancellation that arrives just after the part was
    # sent.
    block = CancelScope()
    timer = asyncio.get_running_loop().call_later(stall_timeout_s, block.cancel)
    try:
        with block:
            await sending
    except ScopeCancelled:
        scope["state"]["abort"]()
        raise ClientDisconnected from None
    finally:
        timer.cancel()


def query_of(scope: Scope) -> dict[str, str]:
    """Return the query parameters. If a parameter is repeated, its last value wins."""
    return {name: values[-1] for name, values in _query(scope).items()}


def values_of(scope: Scope, name: str) -> list[str]:
    """Return all values of a query parameter that may be repeated, as `name` or as `name[]`."""
    query = _query(scope)
    return [*query.get(name, ()), *query.get(f"{name}[]", ())]


def flag_of(query: Mapping[str, str], name: str) -> bool:
    """Return the boolean query parameter `name`, or False if it is absent. Raises
    InvalidRequest."""
    value = BOOLEANS.get(query.get(name, "").lower())
    if value is None:
        raise InvalidRequest(f"`{name}` must be true or false", field=name, code="invalid_type")
    return value


def _query(scope: Scope) -> dict[str, list[str]]:
    text: str = scope["query_string"].decode("ascii", "replace")
    return parse_qs(text, keep_blank_values=True)
