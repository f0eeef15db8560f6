"""The interface between the routes and a dialect."""

from __future__ import annotations

from collections.abc import Callable
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


class Numbered(msgspec.Struct, frozen=True):
    """Frames with numbers: that of the first, and what stands between it and the text. `go_on` is
    told the number that comes after the last."""

    first: int
    between: bytes
    go_on: Callable[[int], None]


class Around(msgspec.Struct, frozen=True):
    """What stands before and after a text in its frame: the JSON of the text without its quotes,
    which belong to these. In frames with numbers, `before` is what stands before the number."""

    before: bytes
    after: bytes
    numbered: Numbered | None = None


class StreamEncoder(Protocol):
    """Turns the events of one run into frames. One instance per stream."""

    def encode(self, event: Event) -> bytes:
        """Return the frames of one event, which may be empty. RunEnded and RunFailed give the last
        frames of the stream."""
        ...

    def around(self, choice: int, part: int) -> Around | None:
        """After a text delta of this part: the frames of those that follow. None where there is
        more to a frame than that."""
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
