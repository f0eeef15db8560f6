"""Decodes a Messages request with some additional fields."""

from __future__ import annotations

import base64
from typing import Any

from penstock.api.codecs.messages import decode
from tests.support.request_decoder import RequestDecoder

BASE: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
TOOL = {"name": "f", "description": "does", "input_schema": {"type": "object"}}
PNG = base64.b64encode(b"\x89PNG").decode()
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
HELLO = RequestDecoder(decode, BASE)
request, refused = HELLO.request, HELLO.refused


def parts(*blocks: Any, role: str = "user") -> tuple[Any, ...]:
    (message,) = request(messages=[{"role": role, "content": list(blocks)}]).messages or ()
    return message.parts


def user(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]
