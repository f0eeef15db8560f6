"""The frames between API processes and the engine process.

A frame is a 4-byte little-endian length and that many bytes of msgpack (msgspec, never pickle).
The socket is a Unix stream socket in a directory that only its user may enter.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TypeVar

import msgspec

from penstock.dialog import Sampling
from penstock.engine.types import (
    AdapterSource,
    AdapterState,
    EmbedOutput,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    TokenOutput,
    TokenRequest,
)
from penstock.grammar.vocabulary import Vocabulary

MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """A request without its sampling, and the encoded sampling: see `submit`."""

    request: TokenRequest
    sampling: bytes


class SubmitEmbed(msgspec.Struct, frozen=True, tag="submit_embed"):
    request: EmbedRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    id: str


class SetTokenizer(msgspec.Struct, frozen=True, tag="set_tokenizer"):
    """Precedes the first request with a constraint."""

    vocabulary: Vocabulary


class AskGauges(msgspec.Struct, frozen=True, tag="ask_gauges"):
    pass


class AddAdapter(msgspec.Struct, frozen=True, tag="add_adapter"):
    """Answered with AdapterAdded or Refused of the same `id` when the load ends."""

    id: str
    source: AdapterSource


class RetireAdapter(msgspec.Struct, frozen=True, tag="retire_adapter"):
    revision: str


class AskAdapters(msgspec.Struct, frozen=True, tag="ask_adapters"):
    pass


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first frame on every connection: the engine is loaded and serves."""

    info: EngineInfo


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    """The engine has queued a TokenRequest. Each one is answered with Admitted or Refused first."""

    id: str


class TokenOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    """Everything that one step made for the requests of this connection."""

    outputs: tuple[TokenOutput, ...]


class EmbedOutputs(msgspec.Struct, frozen=True, tag="embed_outputs"):
    """Everything that one step of an embedding engine made for this connection."""

    outputs: tuple[EmbedOutput, ...]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A request was not admitted, or an adapter not loaded. The fields are those of the
    ServiceError that says why."""

    id: str
    status: int
    kind: str
    code: str
    message: str
    field: str | None
    retry_after_s: int | None


class Gauges(msgspec.Struct, frozen=True, tag="gauges"):
    gauges: EngineGauges


class AdapterAdded(msgspec.Struct, frozen=True, tag="adapter_added"):
    id: str
    state: AdapterState


class Adapters(msgspec.Struct, frozen=True, tag="adapters"):
    states: tuple[AdapterState, ...]


ToEngine = (
    Submit
    | SubmitEmbed
    | Abort
    | SetTokenizer
    | AskGauges
    | AddAdapter
    | RetireAdapter
    | AskAdapters
)
FromEngine = (
    Hello | Admitted | TokenOutputs | EmbedOutputs | Refused | Gauges | AdapterAdded | Adapters
)

_NO_SAMPLING = Sampling()
_encoder = msgspec.msgpack.Encoder()
_sampling_decoder = msgspec.msgpack.Decoder(Sampling)
_T = TypeVar("_T")


def submit(request: TokenRequest) -> Submit:
    """Return the message that submits a request. All choices of one client's request have the same
    sampling, which may have a bias for every token: the engine decodes it once for all of them."""
    bare = msgspec.structs.replace(request, sampling=_NO_SAMPLING)
    return Submit(bare, _encoder.encode(request.sampling))


def submitted(message: Submit) -> TokenRequest:
    """Return the request of a message. Raises msgspec.DecodeError."""
    return msgspec.structs.replace(message.request, sampling=_decoded(message.sampling))


@lru_cache(maxsize=4)
def _decoded(sampling: bytes) -> Sampling:
    return _sampling_decoder.decode(sampling)


def frame(message: ToEngine | FromEngine) -> bytes:
    """Return the bytes to send for a message."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Splits a byte stream into frames. Raises ValueError on a frame over MAX_FRAME_BYTES."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies of the frames that `data` completes."""
        self._pending += data
        bodies = []
        at = 0
        while len(self._pending) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._pending, at)
            if size > MAX_FRAME_BYTES:
                raise ValueError(f"frame of {size} bytes")
            end = at + _LENGTH.size + size
            if len(self._pending) < end:
                break
            bodies.append(bytes(self._pending[at + _LENGTH.size : end]))
            at = end
        del self._pending[:at]
        return bodies


to_engine_decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
from_engine_decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
