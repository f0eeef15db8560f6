"""Decodes requests of a dialect, for tests that give only the fields under test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from penstock.base.errors import InvalidRequest
from penstock.dialog import GenerateRequest


class RequestDecoder:
    """`decode`: the decoder of a dialect; `body`: its minimal request."""

    def __init__(self, decode: Callable[[bytes], Any], body: Mapping[str, Any]) -> None:
        self._decode = decode
        self._body = dict(body)

    def request(self, **fields: Any) -> GenerateRequest:
        decoded: GenerateRequest = self._decode(json.dumps(self._body | fields).encode()).request
        return decoded

    def refused(self, **fields: Any) -> InvalidRequest:
        """Return the error of a request, whose text must name the field that caused it."""
        with pytest.raises(InvalidRequest) as caught:
            self.request(**fields)
        assert f"`{caught.value.field}`" in caught.value.message
        return caught.value
