"""The access log: one line when a request is understood, one when it is over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Literal

import orjson

from penstock.api.record import RequestRecord
from penstock.base.logs import LineHandler

log = logging.getLogger("penstock.access")


def configure_access_log(form: Literal["text", "json"], *, enabled: bool) -> None:
    """Choose the form of the lines for this process. JSON lines carry nothing but the object."""
    log.disabled = not enabled
    if form == "json":
        log.handlers[:] = [LineHandler()]
        log.propagate = False


class AccessLog:
    """Writes the lines. `form`: "text" (`name=value` pairs) or "json"."""

    def __init__(self, form: Literal["text", "json"]) -> None:
        self._write = self._json if form == "json" else self._text
        self._say = _way_out()

    def started(self, record: RequestRecord) -> None:
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

    def completed(self, record: RequestRecord, duration_s: float) -> None:
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
                "completion_tokens": record.completion_tokens or None,
                "tokens_per_second": record.tokens_per_second,
            },
        )

    def _text(self, event: str, fields: dict[str, object]) -> None:
        pairs = [f"{key}={value}" for key, value in fields.items() if value is not None]
        self._say(f"{event} {' '.join(pairs)}")

    def _json(self, event: str, fields: dict[str, object]) -> None:
        given = {key: value for key, value in fields.items() if value is not None}
        self._say(orjson.dumps({"event": event, **given}).decode())


def _way_out() -> Callable[[str], None]:
    """Straight to the handler of this process; where it is not ours, as a record."""
    handlers = [*log.handlers, *logging.getLogger("penstock").handlers]
    if handlers and isinstance(handlers[0], LineHandler) and log.isEnabledFor(logging.INFO):
        return partial(handlers[0].say, log.name)
    return partial(log.info, "%s")
