"""The protocols through which the routes use a dialect."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.openai_compat import NO_COMPAT, OpenAICompat
from penstock.base.errors import ServiceError
from penstock.dialog import Event, GenerateRequest
from penstock.dialog.fold import Answer


class Decoded(msgspec.Struct, frozen=True):
    """A decoded request body. `stream`: answer with an SSE stream. `writer`: writes the answer;
    None: the dialect writes it. `field_paths`: maps field names in errors to paths in the body."""

    request: GenerateRequest
    stream: bool = False
    writer: AnswerWriter | None = None
    field_paths: FieldPaths = msgspec.field(default_factory=FieldPaths)


class AnswerIdentity(msgspec.Struct, frozen=True):
    """The id of an answer and the id of its HTTP request."""

    id: str
    request_id: str = ""


class StreamEncoder(Protocol):
    """Encodes the events of one stream as SSE frames. Each stream has its own instance."""

    def encode(self, event: Event) -> bytes:
        """Return the frames of one event, possibly b"". RunEnded and RunFailed return the last
        frames of the stream."""
        ...

    def fail(self, error: ServiceError) -> bytes:
        """Return the frames that end a stream with an error."""
        ...

    def keep_alive(self) -> bytes:
        """Return a frame that keeps an idle connection open."""
        ...


class AnswerWriter(Protocol):
    """Writes a dialect's answers: JSON for complete answers, SSE frames for streams."""

    def encoder(self, identity: AnswerIdentity, request: GenerateRequest) -> StreamEncoder: ...

    def encode(self, identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
        """Return the JSON of a complete answer."""
        ...


class Dialect(AnswerWriter, Protocol):
    """A codec: decodes requests and writes answers. `id_prefix`: the start of every answer id."""

    id_prefix: str

    def decode(self, body: bytes, compat: OpenAICompat = NO_COMPAT) -> Decoded:
        """Decode a request body. `compat`: OpenAI features that the operator turned on. Raises
        InvalidRequest, which names the wrong field."""
        ...
