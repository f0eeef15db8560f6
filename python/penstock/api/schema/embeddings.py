"""`POST /v1/embeddings`: the request and the answer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType

from penstock.api.schema import fields as f
from penstock.api.schema.constraints import Adapter


class EmbeddingRequest(Struct, kw_only=True):
    """One or several texts to embed."""

    input: f.TextOrTokenIds
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
