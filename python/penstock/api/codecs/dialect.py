"""The interface of every dialect to the routes."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.openai_compat import AS_SPECIFIED, Accepted
from penstock.base.errors import ServiceError
from penstock.dialog import Event, GenerateRequest
from penstock.dialog.fold import Answer


class Decoded(msgspec.Struct, frozen=True):
    """A decoded body: what to generate, and how to answer. `writer`: writes the answer, None for
    the dialect itself. `names`: the client's names of the request's fields."""

    request: GenerateRequest
    stream: bool = False
    writer: AnswerWriter | None = None
    names: FieldPaths = msgspec.field(default_factory=FieldPaths)


class AnswerIdentity(msgspec.Struct, frozen=True):
    """The id of an answer, and that of its request."""

    id: str
    request_id: str = ""


class StreamEncoder(Protocol):
    """Encodes the events of one run as frames. One instance per stream."""

    def encode(self, event: Event) -> bytes:
        """Return the frames of one event, empty if the dialect shows nothing. RunEnded and
        RunFailed give the last frames of the stream."""
        ...

    def fail(self, error: ServiceError) -> bytes:
        """Return the last frames of a stream that an error ends."""
        ...

    def keep_alive(self) -> bytes:
        """Return the bytes of a keep-alive."""
        ...


class AnswerWriter(Protocol):
    """The encoding half of a codec."""

    def encoder(self, identity: AnswerIdentity, request: GenerateRequest) -> StreamEncoder: ...

    def encode(self, identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
        """Return the JSON of a finished answer."""
        ...


class Dialect(AnswerWriter, Protocol):
    """A codec, as the routes use it."""

    id_prefix: str

    def decode(self, body: bytes, accepted: Accepted = AS_SPECIFIED) -> Decoded:
        """Decode a body. `accepted`: fields that the operator allows beyond the specification.
        Raises InvalidRequest naming the field."""
        ...
