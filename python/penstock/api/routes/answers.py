"""Finished answers of any kind, and what many routes read of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs

import orjson
from starlette.types import Scope, Send

from penstock.base.errors import InvalidRequest

MAX_LIMIT: Final = 10_000

_T = TypeVar("_T")


async def send_value(value: Any, send: Send, *, status: int = 200) -> None:
    """Send a value as JSON."""
    body = orjson.dumps(value)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_empty(send: Send) -> None:
    """Send 200 without a body."""
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body"})


def query_of(scope: Scope) -> dict[str, str]:
    """The query's fields; of one given twice, the last."""
    text: str = scope["query_string"].decode("ascii", "replace")
    return {name: values[-1] for name, values in parse_qs(text).items()}


def limit_of(query: dict[str, str]) -> int:
    """The query's `limit`. Raises InvalidRequest."""
    text = query.get("limit", str(MAX_LIMIT))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_LIMIT):
        raise InvalidRequest(f"`limit` must be an integer from 1 to {MAX_LIMIT}", field="limit")
    return int(text)


def page_of(
    items: Sequence[_T], after: str | None, limit: int, id_of: Callable[[_T], str]
) -> tuple[list[_T], bool]:
    """(the items that follow the one with the id `after`, whether there are more). After an id
    that is not there nothing follows."""
    start = 0
    if after is not None:
        places = (index for index, item in enumerate(items) if id_of(item) == after)
        start = next(places, len(items) - 1) + 1
    return list(items[start : start + limit]), start + limit < len(items)
