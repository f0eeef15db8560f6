"""Requests to the HTTP APIs of search engines. The operator configures their addresses, which may
be private ones."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from typing import Any, Final

import httpx

from penstock.agent.web.engines.engine import SearchFailed
from penstock.config import SettingsError
from penstock.fetch.fetcher import public_certificates

MAX_BYTES: Final = 4 * 1024 * 1024


class JsonApi:
    """A search engine's API that answers GET requests with JSON.

    - `name`: the engine's name in error messages.
    - `url`: the address of the API.
    - `headers`: sent with every request; may contain a key.
    - `hint`: how to correct statuses of the API, by status.
    """

    def __init__(
        self,
        name: str,
        url: str,
        headers: Mapping[str, str],
        hint: Mapping[int, str],
    ) -> None:
        """Raises SettingsError if `url` is not an HTTP URL."""
        try:
            self._url = httpx.URL(url)
            valid = self._url.scheme in ("http", "https") and bool(self._url.host)
        except (httpx.InvalidURL, ValueError):
            valid = False
        if not valid:
            raise SettingsError("[agent.search] url must be an http: or https: URL")
        self._name = name
        self._headers = {"accept": "application/json", "user-agent": "penstock", **headers}
        self._hint = hint
        self._tls: ssl.SSLContext | None = None

    async def get(self, parameters: Mapping[str, str], headers: Mapping[str, str]) -> Any:
        """Return the decoded answer. Follows no redirects, because the headers may contain a key.
        Raises SearchFailed."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(public_certificates)
        try:
            async with (
                httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=None) as client,
                client.stream(
                    "GET", self._url, params=parameters, headers={**self._headers, **headers}
                ) as answer,
            ):
                self._check_status(answer.status_code)
                body = await self._read(answer)
        except (httpx.HTTPError, httpx.StreamError):
            raise SearchFailed(f"the search engine {self._name} cannot be reached") from None
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise SearchFailed(f"{self._name} answered with invalid JSON") from None

    def _check_status(self, status: int) -> None:
        if status == 200:
            return
        hint = self._hint.get(status)
        raise SearchFailed(
            f"{self._name} answered with status {status}" + (f": {hint}" if hint else "")
        )

    async def _read(self, answer: httpx.Response) -> bytes:
        body = bytearray()
        async for chunk in answer.aiter_bytes(64 * 1024):
            body += chunk
            if len(body) > MAX_BYTES:
                raise SearchFailed(f"{self._name} answered with more than {MAX_BYTES} bytes")
        return bytes(body)


def results_of(answer: Any, *path: str) -> list[Any]:
    """Return the list at a path of keys in a decoded answer, [] if there is none."""
    for key in path:
        answer = answer.get(key) if isinstance(answer, dict) else None
    return answer if isinstance(answer, list) else []
