"""The frames between API processes and the engine process.

A frame is a 4-byte little-endian length and that many bytes of msgpack (msgspec, never pickle). The
socket is a Unix stream socket in a directory that only its owner may enter.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TypeVar

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.dialog import Sampling
from penstock.engine.types import (
    AdapterSource,
    AdapterState,
    EmbedOutput,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    ImageOutput,
    ImageRequest,
    MediaItem,
    SpeechOutput,
    SpeechRequest,
    TokenOutput,
    TokenRequest,
)
from penstock.engine.weight_orders import WeightOrder, WeightsState
from penstock.grammar.vocabulary import Vocabulary

MAX_FRAME_BYTES = 512 * 1024 * 1024
"""Most bytes of a frame. The largest frames are requests with prepared media."""
_LENGTH = struct.Struct("<I")


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Submits a text request; see `SubmitEncoder`.

    - `request`: the request without its sampling parameters and media.
    - `sampling`: the encoded sampling parameters.
    - `media`: None: those of the request that was submitted before on the connection.
    - `keeps_media`: the request that is submitted next has the same media.
    """

    request: TokenRequest
    sampling: bytes
    media: tuple[MediaItem, ...] | None = ()
    keeps_media: bool = False


class SubmitEmbed(msgspec.Struct, frozen=True, tag="submit_embed"):
    request: EmbedRequest


class SubmitSpeech(msgspec.Struct, frozen=True, tag="submit_speech"):
    request: SpeechRequest


class SubmitImages(msgspec.Struct, frozen=True, tag="submit_images"):
    request: ImageRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    id: str


class SetTokenizer(msgspec.Struct, frozen=True, tag="set_tokenizer"):
    """Sends the model's vocabulary to the engine, before the first request with a constraint."""

    vocabulary: Vocabulary


class AskGauges(msgspec.Struct, frozen=True, tag="ask_gauges"):
    pass


class AddAdapter(msgspec.Struct, frozen=True, tag="add_adapter"):
    """Loads an adapter revision. When the load ends, the engine answers with AdapterAdded or
    Refused, with the same `id`."""

    id: str
    source: AdapterSource


class RetireAdapter(msgspec.Struct, frozen=True, tag="retire_adapter"):
    revision: str


class AskAdapters(msgspec.Struct, frozen=True, tag="ask_adapters"):
    pass


class ChangeWeights(msgspec.Struct, frozen=True, tag="change_weights"):
    """Carries out an order for the weights. The engine answers with WeightsChanged or Refused, with
    the same `id`."""

    id: str
    order: WeightOrder


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first frame of every connection: the engine is loaded and serves. It is sent again when
    the engine has other weights."""

    info: EngineInfo


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    """Reports that the engine has queued the TokenRequest `id`. The first answer to every
    TokenRequest is Admitted or Refused."""

    id: str


class TokenOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    """All outputs of one step for the requests of this connection."""

    outputs: tuple[TokenOutput, ...]


class EmbedOutputs(msgspec.Struct, frozen=True, tag="embed_outputs"):
    """All outputs of one step of an embedding engine for the requests of this connection."""

    outputs: tuple[EmbedOutput, ...]


class SpeechOutputs(msgspec.Struct, frozen=True, tag="speech_outputs"):
    """All outputs of one step of a speech engine for the requests of this connection."""

    outputs: tuple[SpeechOutput, ...]


class ImageOutputs(msgspec.Struct, frozen=True, tag="image_outputs"):
    """All outputs of one step of an image engine for the requests of this connection."""

    outputs: tuple[ImageOutput, ...]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Reports that the request `id` was not admitted, the adapter of AddAdapter `id` not loaded, or
    the order of ChangeWeights `id` not carried out. The other fields are copied from the
    ServiceError."""

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


class WeightsChanged(msgspec.Struct, frozen=True, tag="weights_changed"):
    id: str
    state: WeightsState


ToEngine = (
    Submit
    | SubmitEmbed
    | SubmitSpeech
    | SubmitImages
    | Abort
    | SetTokenizer
    | AskGauges
    | AddAdapter
    | RetireAdapter
    | AskAdapters
    | ChangeWeights
)
FromEngine = (
    Hello
    | Admitted
    | TokenOutputs
    | EmbedOutputs
    | SpeechOutputs
    | ImageOutputs
    | Refused
    | Gauges
    | AdapterAdded
    | Adapters
    | WeightsChanged
)

_NO_SAMPLING = Sampling()
_encoder = msgspec.msgpack.Encoder()
_sampling_decoder = msgspec.msgpack.Decoder(Sampling)
_T = TypeVar("_T")


class SubmitEncoder:
    """Encodes the requests that are submitted on one connection.

    All choices of a client request have equal sampling parameters, which may include a bias for
    every token, and equal media, which may have hundreds of megabytes. The sampling parameters are
    encoded separately, so that the engine decodes them only once. Media that successive requests
    share cross once: the engine keeps them until the last of these requests.
    """

    def __init__(self) -> None:
        self._kept: tuple[MediaItem, ...] = ()

    def frame(self, request: TokenRequest, following: TokenRequest | None) -> bytes:
        """Return the frame that submits a request. `following`: the request that will be submitted
        next, if it is known. Raises InvalidRequest like `frame`; nothing must be sent then."""
        media = request.media
        is_kept = bool(media) and media is self._kept
        keeps = bool(media) and following is not None and following.media is media
        bare = msgspec.structs.replace(request, sampling=_NO_SAMPLING, media=())
        sampling = _encoder.encode(request.sampling)
        data = frame(Submit(bare, sampling, None if is_kept else media, keeps))
        self._kept = media if keeps else ()
        return data


class SubmitDecoder:
    """Decodes the requests that are submitted on one connection."""

    def __init__(self) -> None:
        self._kept: tuple[MediaItem, ...] = ()

    def request(self, message: Submit) -> TokenRequest:
        """Return the request in a message. Raises msgspec.DecodeError."""
        media = self._kept if message.media is None else message.media
        self._kept = media if message.keeps_media else ()
        sampling = _decoded(message.sampling)
        return msgspec.structs.replace(message.request, sampling=sampling, media=media)


@lru_cache(maxsize=4)
def _decoded(sampling: bytes) -> Sampling:
    return _sampling_decoder.decode(sampling)


def frame(message: ToEngine | FromEngine) -> bytes:
    """Return the frame of a message: its length and its encoded bytes. Raises InvalidRequest for a
    message over MAX_FRAME_BYTES, which the other end would not read."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise InvalidRequest(
            f"the request with its prepared media has {len(body):,} bytes; the limit is"
            f" {MAX_FRAME_BYTES:,}",
            code="media_too_large",
        )
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Splits a byte stream into frames. Raises ValueError on a frame over MAX_FRAME_BYTES."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes. Return the bodies of the frames that are complete now."""
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
