"""Requests as a dialect decodes them, for tests that name the fields they are about."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from penstock.base.errors import InvalidRequest
from penstock.dialog import GenerateRequest


class RequestDecoder:
    """`decode`: of a dialect; `body`: the least that a request of it has."""

    def __init__(self, decode: Callable[[bytes], Any], body: Mapping[str, Any]) -> None:
        self._decode = decode
        self._body = dict(body)

    def request(self, **fields: Any) -> GenerateRequest:
        decoded: GenerateRequest = self._decode(json.dumps(self._body | fields).encode()).request
        return decoded

    def refused(self, **fields: Any) -> InvalidRequest:
        """The refusal of a request, whose text names the field that it is of."""
        with pytest.raises(InvalidRequest) as caught:
            self.request(**fields)
        assert f"`{caught.value.field}`" in caught.value.message
        return caught.value
