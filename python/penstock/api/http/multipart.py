"""Parses multipart bodies part by part as they arrive."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Scope

from penstock.base.errors import InvalidRequest

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

# The library warns about every wrong byte, and any client can send wrong bytes.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

MAX_PARTS: Final = 1024


@dataclass
class PartHead:
    """The headers of a part. `filename` is None for a form field that is not a file."""

    name: str
    filename: str | None
    content_type: str | None


# Each part is yielded as a PartHead followed by any number of pieces of its data.
MultipartEvent = PartHead | bytes


async def read_multipart(
    scope: Scope, chunks: AsyncIterator[bytes]
) -> AsyncIterator[MultipartEvent]:
    """Yield the parts of a multipart body. Raises InvalidRequest (`invalid_multipart`) if the body
    is not valid multipart, and the exceptions of `chunks`."""
    collector = _Collector()
    parser = MultipartParser(_boundary(scope), collector.callbacks())
    started = False
    try:
        async for chunk in chunks:
            if not started:  # the parser finds no boundary in the chunk after empty lines
                chunk = chunk.lstrip(b"\r\n")
                started = bool(chunk)
            parser.write(chunk)
            for event in collector.take():
                yield event
    except FormParserError:
        raise _invalid_body("cannot be parsed") from None
    if not collector.ended:
        raise _invalid_body("is incomplete")


def _boundary(scope: Scope) -> bytes:
    header = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    kind, options = parse_options_header(header)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 200:
        raise InvalidRequest(
            "the body must be multipart/form-data, with a boundary in Content-Type",
            code="invalid_multipart",
        )
    return boundary


def _invalid_body(why: str) -> InvalidRequest:
    return InvalidRequest(f"the multipart body {why}", code="invalid_multipart")


@dataclass
class _Collector:
    """Collects the events that the multipart parser reports for one chunk."""

    events: list[MultipartEvent] = field(default_factory=list)
    headers: dict[bytes, bytes] = field(default_factory=dict)
    name: bytes = b""
    value: bytes = b""
    parts: int = 0
    ended: bool = False

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self.headers.clear,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def take(self) -> list[MultipartEvent]:
        taken, self.events = self.events, []
        return taken

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self.name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]

    def _header_end(self) -> None:
        self.headers[self.name.lower()] = self.value
        self.name = self.value = b""

    def _headers_finished(self) -> None:
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise _invalid_body(f"has more than {MAX_PARTS} parts")
        kind, options = parse_options_header(self.headers.get(b"content-disposition", b""))
        if kind != b"form-data" or b"name" not in options:
            raise _invalid_body("has a part without a name")
        filename = options.get(b"filename")
        content_type = self.headers.get(b"content-type")
        self.events.append(
            PartHead(
                name=options[b"name"].decode("utf-8", "replace"),
                filename=None if filename is None else filename.decode("utf-8", "replace"),
                content_type=None if content_type is None else content_type.decode("latin-1"),
            )
        )

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.events.append(bytes(data[start:end]))

    def _end(self) -> None:
        self.ended = True
