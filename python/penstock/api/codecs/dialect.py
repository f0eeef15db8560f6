"""What every dialect gives to the routes, whatever its wire looks like."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.openai_compat import AS_SPECIFIED, Accepted
from penstock.base.errors import ServiceError
from penstock.dialog import Event, GenerateRequest
from penstock.dialog.fold import Answer


class Decoded(msgspec.Struct, frozen=True):
    """A body understood: what to generate, and how to answer. `writer`: who writes the answer,
    where it is not the dialect itself. `names`: how the client wrote its fields."""

    request: GenerateRequest
    stream: bool = False
    writer: AnswerWriter | None = None
    names: FieldPaths = msgspec.field(default_factory=FieldPaths)


class AnswerIdentity(msgspec.Struct, frozen=True):
    """The id of an answer, and that of its request."""

    id: str
    request_id: str = ""


class StreamEncoder(Protocol):
    """Turns the events of one run into frames. One instance a stream."""

    def encode(self, event: Event) -> bytes:
        """The frames of one event, empty where the dialect shows nothing. RunEnded and RunFailed
        give the last frames of the stream."""
        ...

    def fail(self, error: ServiceError) -> bytes:
        """The last frames of a stream that an error ends."""
        ...

    def keep_alive(self) -> bytes:
        """What is sent while nothing happens."""
        ...


class AnswerWriter(Protocol):
    """The way out of a codec."""

    def encoder(self, identity: AnswerIdentity, request: GenerateRequest) -> StreamEncoder: ...

    def encode(self, identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
        """The JSON of a finished answer."""
        ...


class Dialect(AnswerWriter, Protocol):
    """A codec as the routes see it."""

    id_prefix: str

    def decode(self, body: bytes, accepted: Accepted = AS_SPECIFIED) -> Decoded:
        """`accepted`: what an operator adds to the interface. Raises InvalidRequest naming the
        field."""
        ...
