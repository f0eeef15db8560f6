"""`POST /v1/embeddings`: the request and the answer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.api.schema import fields as f
from penstock.api.schema.chat.request import ChatMessage, ImagePart, TextPart, VideoPart
from penstock.api.schema.constraints import Adapter
from penstock.dialog.ranges import MAX_INPUTS


class InputContent(Struct):
    """An input with images or videos: `content`, or `text` and `image` (a URL, a data: URL or
    base64)."""

    content: list[TextPart | ImagePart | VideoPart] | None = None
    text: str | None = None
    image: str | None = None


EmbeddingInput = Annotated[
    str
    | Annotated[
        list[str | f.TokenId | Annotated[list[f.TokenId], Meta(min_length=1)] | InputContent],
        Meta(min_length=1),
    ],
    Meta(
        description="A text, an array of token ids, or an array of several of either and of"
        f" inputs with images: at most {MAX_INPUTS}.",
        extra={"wanted": "a string, an array of token ids, or an array of either"},
    ),
]


class EmbeddingRequest(Struct, kw_only=True):
    """One or several inputs to embed. `messages`, in the form of the chat API, is one input in
    place of `input`."""

    input: EmbeddingInput | None = None
    messages: list[ChatMessage] | None = None
    model: f.Model | None = None
    adapter: Adapter | None = None
    encoding_format: Literal["float", "base64"] | None = None
    truncate_sequence: bool | None = None
    dimensions: Annotated[
        None,
        f.refused("is not supported: the model determines the length of an embedding"),
    ] = None
    user: f.Ignored = None


class EmbeddingData(Struct):
    """One vector: an array of numbers, or base64 of their little-endian float32 bytes."""

    object: Literal["embedding"]
    embedding: list[float] | str
    index: int


class EmbeddingUsage(Struct):
    """The number of tokens of all texts together."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(Struct):
    """One vector for each text, in the order of the input. `adapter_generation`: the exact adapter
    that was used."""

    object: Literal["list"]
    data: list[EmbeddingData]
    model: str
    usage: EmbeddingUsage
    adapter_generation: str | UnsetType = UNSET
