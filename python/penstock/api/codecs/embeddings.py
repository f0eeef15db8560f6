"""Embeddings: the body of `POST /v1/embeddings`, and its answer."""

from __future__ import annotations

import binascii
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec
import numpy as np
import orjson

from penstock.api.codecs.openai_chunks import generation_field
from penstock.api.codecs.request_fields.fields import Fields, decode_object
from penstock.api.codecs.request_fields.sampling import decode_adapter
from penstock.api.codecs.request_fields.text_or_token_ids import decode_inputs
from penstock.dialog import EmbeddingRequest, Embeddings

# Accepted with a value of any type, and without effect; so is every field named nowhere here.
IGNORED: Final = ("user",)
# Refused with any value but null.
REFUSED: Final = {"dimensions": "is not supported: an embedding has as many numbers as its model"}

Encoding: TypeAlias = Literal["float", "base64"]
ENCODINGS: Final[tuple[Encoding, ...]] = ("float", "base64")


class DecodedEmbedding(msgspec.Struct, frozen=True):
    """A body understood: what to embed, and how to write the numbers."""

    request: EmbeddingRequest
    encoding: Encoding
    stream: ClassVar[bool] = False


def decode(body: bytes) -> DecodedEmbedding:
    """Raises InvalidRequest naming the field that is wrong."""
    fields = decode_object(body)
    for key, why in REFUSED.items():
        if fields.get(key) is not None:
            fields.refuse(key, why, code="unsupported_value")
    request = EmbeddingRequest(
        inputs=_inputs(fields),
        model=fields.string("model") or None,
        adapter=decode_adapter(fields),
        truncate=fields.boolean("truncate_sequence") or False,
    )
    base64 = fields.choice("encoding_format", ENCODINGS) == "base64"
    return DecodedEmbedding(request, "base64" if base64 else "float")


def encode(answer: Embeddings, encoding: Encoding) -> bytes:
    """The JSON of the answer: float32 numbers in their shortest spelling, or base64 of their
    little-endian bytes."""
    data = [
        {"object": "embedding", "index": index, "embedding": embedding}
        for index, embedding in enumerate(_written(answer, encoding))
    ]
    usage = {"prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens}
    body = {
        "object": "list",
        "data": data,
        "model": answer.model,
        "usage": usage,
        **generation_field(answer.adapter_revision),
    }
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def _written(answer: Embeddings, encoding: Encoding) -> list[Any]:
    if encoding == "float":
        return list(np.frombuffer(answer.vectors, "<f4").reshape(-1, answer.width))
    size = 4 * answer.width
    return [
        binascii.b2a_base64(answer.vectors[at : at + size], newline=False).decode()
        for at in range(0, len(answer.vectors), size)
    ]


def _inputs(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    inputs = decode_inputs(fields, "input")
    for index, given in enumerate(inputs):
        if not given:
            key = "input" if type(fields.get("input")) is str else f"input[{index}]"
            fields.refuse(key, "must not be empty")
    return inputs
