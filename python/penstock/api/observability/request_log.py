"""Keeps the last requests of this process for the web page. Bodies are not kept."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from msgspec import Struct

from penstock.api.observability.request_record import RequestRecord
from penstock.base.ids import new_id

KEPT: Final = 500


class LoggedRequest(Struct, kw_only=True):
    """One finished request. `number`: counts the requests of this process from 1; `time`: its end,
    in Unix seconds."""

    number: int
    id: str
    time: float
    method: str
    path: str
    model: str
    status: int
    outcome: str
    seconds: float
    ttft_s: float | None
    prompt_tokens: int
    completion_tokens: int


class LoggedRequests(Struct):
    """A part of the log, oldest first. `process`: names the process that numbered the requests."""

    process: str
    requests: list[LoggedRequest]


class RequestLog:
    """The last 500 requests of this process, without health checks and requests of the page."""

    def __init__(self) -> None:
        self._process = new_id("")
        self._kept: deque[LoggedRequest] = deque(maxlen=KEPT)
        self._number = 0

    def add(self, record: RequestRecord, duration_s: float) -> None:
        """Add a finished request."""
        self._number += 1
        first_token_ms = record.first_token_ms
        self._kept.append(
            LoggedRequest(
                number=self._number,
                id=record.id,
                time=time.time(),
                method=record.method,
                path=record.route,
                model=record.model,
                status=record.status,
                outcome=record.outcome,
                seconds=round(duration_s, 4),
                ttft_s=None if first_token_ms is None else first_token_ms / 1000,
                prompt_tokens=record.prompt_tokens,
                completion_tokens=record.completion_tokens,
            )
        )

    def after(self, number: int, process: str) -> LoggedRequests:
        """Return the kept requests with a higher number; all if `process` is another process, such
        as this server before its restart."""
        least = number if process == self._process else 0
        newer = [request for request in self._kept if request.number > least]
        return LoggedRequests(self._process, newer)
