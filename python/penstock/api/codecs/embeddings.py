"""Embeddings: `POST /v1/embeddings`."""

from __future__ import annotations

import binascii
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
import numpy as np
import orjson

from penstock.api.codecs.openai_chunks import generation_field
from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.codecs.request_fields.sampling import decode_adapter
from penstock.api.codecs.request_fields.text_or_token_ids import Input, decode_inputs
from penstock.api.schema import embeddings as e
from penstock.dialog import EmbeddingRequest, Embeddings

Encoding: TypeAlias = Literal["float", "base64"]


class DecodedEmbedding(msgspec.Struct, frozen=True):
    """A decoded body. `encoding`: the format of the vectors in the answer."""

    request: EmbeddingRequest
    encoding: Encoding
    stream: ClassVar[bool] = False


def decode(body: bytes) -> DecodedEmbedding:
    """Decode an embedding request. Raises InvalidRequest, which names the wrong field."""
    asked = decode_body(body, e.EmbeddingRequest)
    request = EmbeddingRequest(
        inputs=_inputs(asked),
        model=asked.model or None,
        adapter=decode_adapter(asked.adapter),
        truncate=asked.truncate_sequence or False,
    )
    return DecodedEmbedding(request, asked.encoding_format or "float")


def encode(answer: Embeddings, encoding: Encoding) -> bytes:
    """Return the JSON of the answer. Vectors are arrays of float32 numbers in their shortest
    decimal form, or base64 of little-endian float32 bytes."""
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


def _inputs(asked: e.EmbeddingRequest) -> tuple[Input, ...]:
    inputs = decode_inputs(asked.input, "input")
    for index, given in enumerate(inputs):
        if not given:
            path = "input" if isinstance(asked.input, str) else f"input[{index}]"
            refuse(path, "must not be empty")
    return inputs
