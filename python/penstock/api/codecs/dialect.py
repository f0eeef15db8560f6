"""The interface between the routes and a dialect."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.openai_compat import NO_COMPAT, OpenAICompat
from penstock.base.errors import ServiceError
from penstock.dialog import Event, GenerateRequest
from penstock.dialog.fold import Answer


class Decoded(msgspec.Struct, frozen=True):
    """A decoded body: what to generate, and how to answer. `writer`: writes the answer in place of
    the dialect. `field_paths`: how the client wrote its fields."""

    request: GenerateRequest
    stream: bool = False
    writer: AnswerWriter | None = None
    field_paths: FieldPaths = msgspec.field(default_factory=FieldPaths)


class AnswerIdentity(msgspec.Struct, frozen=True):
    """The ids of an answer and of its request."""

    id: str
    request_id: str = ""


class StreamEncoder(Protocol):
    """Turns the events of one run into frames. One instance per stream."""

    def encode(self, event: Event) -> bytes:
        """Return the frames of one event, which may be empty. RunEnded and RunFailed give the last
        frames of the stream."""
        ...

    def fail(self, error: ServiceError) -> bytes:
        """Return the last frames of a stream that an error ends."""
        ...

    def keep_alive(self) -> bytes:
        """Return the frame that keeps an idle stream open."""
        ...


class AnswerWriter(Protocol):
    """Writes answers and streams."""

    def encoder(self, identity: AnswerIdentity, request: GenerateRequest) -> StreamEncoder: ...

    def encode(self, identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
        """Return the JSON of a finished answer."""
        ...


class Dialect(AnswerWriter, Protocol):
    """A codec as the routes use it."""

    id_prefix: str

    def decode(self, body: bytes, compat: OpenAICompat = NO_COMPAT) -> Decoded:
        """`compat`: what the operator adds to the interface. Raises InvalidRequest naming the
        field."""
        ...
