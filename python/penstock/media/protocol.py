"""Messages between an API process and its decoding processes.

A frame is an 8-byte little-endian length and msgpack. The API process sends a `WorkerSetup`, and
gets a `Ready`; it then sends a `Job` at a time, and gets an `Answer` to each.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.media.limits import MediaLimits
from penstock.models.hub.model_files import ModelFiles
from penstock.models.media.prepared import MediaKind, PreparedMedia

LENGTH: Final = struct.Struct("<Q")
MAX_CHARS: Final = 300
"""Maximum length of each text of an answer."""
_ITEM_BYTES: Final = {"u8": 1, "f32": 4}
_M = TypeVar("_M", bound=msgspec.Struct)


class WorkerSetup(msgspec.Struct, frozen=True):
    """The first frame. `files`: the model whose processor prepares the media; None: none does."""

    files: ModelFiles | None
    limits: MediaLimits


class Ready(msgspec.Struct, frozen=True):
    """The process is sealed, or has failed to start. `fault`: the reason, for the log; ""."""

    fault: str = ""


class Job(msgspec.Struct, frozen=True):
    """An item to decode and prepare."""

    kind: MediaKind
    data: bytes


class Answer(msgspec.Struct, frozen=True):
    """The prepared item, or the code and message of the error that the client gets.

    `origin`: the place in the code where a library found the item damaged, for the log; "".
    """

    media: PreparedMedia | None = None
    code: str = ""
    message: str = ""
    origin: str = ""

    def check(self, kind: MediaKind) -> None:
        """Raise msgspec.ValidationError if the answer is malformed: an item may have taken over the
        process."""
        if self.media is None:
            texts = (self.code, self.message, self.origin)
            if not (
                self.code.isidentifier()
                and self.message
                and all(text.isprintable() and len(text) <= MAX_CHARS for text in texts)
            ):
                raise msgspec.ValidationError("malformed error")
            return
        num_bytes = _ITEM_BYTES[self.media.dtype]
        for size in self.media.shape:
            num_bytes *= size
        if (
            self.media.kind != kind
            or min(self.media.shape, default=0) < 0
            or num_bytes != len(self.media.data)
        ):
            raise msgspec.ValidationError("malformed media")

    def result(self) -> PreparedMedia:
        """Return the prepared item. Raises InvalidRequest if the process refused it."""
        if self.media is None:
            raise InvalidRequest(self.message, code=self.code)
        return self.media


def encode(message: msgspec.Struct) -> bytes:
    """Encode the body of a frame."""
    return msgspec.msgpack.encode(message, enc_hook=_encode_path)


def decode(body: bytes | bytearray, kind: type[_M]) -> _M:
    """Decode the body of a frame. Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(body, type=kind, dec_hook=_decode_path)


def _encode_path(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))


def _decode_path(kind: type, value: Any) -> Any:
    if issubclass(kind, Path):
        return kind(value)
    raise NotImplementedError(kind)
