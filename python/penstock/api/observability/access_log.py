"""The access log: one line when a request's route and model are known, one line per call of a
server tool, and one line when the request ends."""

from __future__ import annotations

import logging
import sys
from datetime import datetime, timezone
from typing import Literal

import orjson

from penstock.api.observability.request_record import RequestRecord

log = logging.getLogger("penstock.access")


def configure_access_log(form: Literal["text", "json"], *, enabled: bool) -> None:
    """Set up the access log of this process. `form`: "text" writes name=value pairs after the usual
    log prefix, "json" writes only the JSON object."""
    log.disabled = not enabled
    if form == "json":
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.handlers[:] = [handler]
        log.propagate = False


class AccessLog:
    """Writes the access log. `form`: "text" (`name=value` pairs) or "json"."""

    def __init__(self, form: Literal["text", "json"]) -> None:
        self._write = self._json if form == "json" else self._text

    def request_started(self, record: RequestRecord) -> None:
        """Log the start of a request. Its route and model are known by then."""
        self._write(
            "request started",
            {
                "request_id": record.id,
                "method": record.method,
                "route": record.route,
                "path": record.path,
                "model": record.model,
                "content_length": record.content_length,
            },
        )

    def request_finished(self, record: RequestRecord, duration_s: float) -> None:
        """Log the end of a request."""
        self._write(
            "request completed",
            {
                "request_id": record.id,
                "method": record.method,
                "route": record.route,
                "model": record.model,
                "status": record.status,
                "duration_ms": round(duration_s * 1000, 3),
                "outcome": record.outcome,
                "prompt_tokens": record.prompt_tokens or None,
                "completion_tokens": record.completion_tokens or None,
                "first_token_ms": record.first_token_ms,
                "tokens_per_second": record.tokens_per_second,
            },
        )

    def tool_called(
        self, request_id: str | None, tool: str, status: str, duration_s: float
    ) -> None:
        """Log the end of a call of a server tool."""
        self._write(
            "tool called",
            {
                "request_id": request_id,
                "tool": tool,
                "status": status,
                "duration_ms": round(duration_s * 1000, 3),
            },
        )

    def _text(self, event: str, fields: dict[str, object]) -> None:
        pairs = [f"{key}={value}" for key, value in fields.items() if value is not None]
        log.info("%s %s", event, " ".join(pairs))

    def _json(self, event: str, fields: dict[str, object]) -> None:
        given = {key: value for key, value in fields.items() if value is not None}
        line = {"time": datetime.now(timezone.utc), "event": event, **given}
        log.info("%s", orjson.dumps(line).decode())
