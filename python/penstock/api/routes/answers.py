"""Finished answers of any kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

import orjson
from starlette.types import Scope, Send

from penstock.api.errors import ClientGone

JSON: Final = "application/json"
PLAIN_TEXT: Final = "text/plain; charset=utf-8"


async def send_json(body: bytes, send: Send, *, status: int = 200) -> None:
    """Send what is JSON already."""
    await send_text(body, send, status=status, content_type=JSON)


async def send_value(value: Any, send: Send, *, status: int = 200) -> None:
    """Send a value as JSON."""
    await send_json(orjson.dumps(value), send, status=status)


async def send_text(
    body: bytes, send: Send, *, status: int = 200, content_type: str = PLAIN_TEXT
) -> None:
    """Send a text."""
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_empty(send: Send) -> None:
    """Send 200 without a body."""
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body"})


async def within_stall(sending: Awaitable[None], scope: Scope, stall_timeout_s: float) -> None:
    """Send a piece of an answer. A client that reads nothing for too long is dropped: raises
    ClientGone."""
    try:
        await asyncio.wait_for(sending, stall_timeout_s)
    except asyncio.TimeoutError:
        scope["state"]["abort"]()
        raise ClientGone from None
