"""Embeddings: `POST /v1/embeddings`."""

from __future__ import annotations

import binascii
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
import numpy as np
import orjson

from penstock.api.codecs.chat.content_parts import decode_content
from penstock.api.codecs.chat.messages import decode_messages
from penstock.api.codecs.openai_chunks import generation_field
from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.codecs.request_fields.media import Source, decode_data, decode_source
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.request_fields.refusals import refuse, refuse_missing
from penstock.api.codecs.request_fields.sampling import decode_adapter
from penstock.api.codecs.request_fields.text_or_token_ids import Input, decode_inputs
from penstock.api.schema import embeddings as e
from penstock.dialog import (
    ConversationInput,
    EmbeddingRequest,
    Embeddings,
    Image,
    Message,
    Part,
    Text,
)

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


def _inputs(asked: e.EmbeddingRequest) -> tuple[Input | ConversationInput, ...]:
    if asked.messages is not None:
        if asked.input is not None:
            refuse("messages", "cannot be used together with `input`")
        paths = PartPaths()
        messages = decode_messages(asked.messages, paths)
        return (ConversationInput(messages, paths.of(messages)),)
    if asked.input is None:
        refuse_missing("input", "a string, an array of token ids, or an array of either")
    given: Any = asked.input
    if isinstance(given, str):
        return _texts(given)
    contents = {
        index: _content(entry, f"input[{index}]")
        for index, entry in enumerate(given)
        if isinstance(entry, e.InputContent)
    }
    # A text in the place of an input with images keeps the indices in error messages.
    texts = _texts(["-" if index in contents else entry for index, entry in enumerate(given)])
    return tuple(contents.get(index, text) for index, text in enumerate(texts))


def _content(entry: e.InputContent, path: str) -> ConversationInput:
    paths = PartPaths()
    parts: tuple[Part, ...] = ()
    if entry.content is not None:
        parts = decode_content(entry.content, f"{path}.content", paths)
    if entry.text is not None:
        parts = (*parts, Text(entry.text))
    if entry.image is not None:
        image = Image(*_source(entry.image, f"{path}.image"))
        paths.note(image, f"{path}.image")
        parts = (*parts, image)
    if not parts:
        refuse_missing(f"{path}.content", "an array of parts, or a `text` or `image` in its place")
    messages = (Message("user", parts),)
    return ConversationInput(messages, paths.of(messages))


def _source(value: str, path: str) -> Source:
    """Decode a URL, a data: URL or base64."""
    if value.startswith(("http://", "https://")):
        return decode_source(value, path)
    return None, *decode_data(value, path)


def _texts(given: Any) -> tuple[Input, ...]:
    inputs = decode_inputs(given, "input")
    for index, one in enumerate(inputs):
        if not one:
            refuse("input" if isinstance(given, str) else f"input[{index}]", "must not be empty")
    return inputs
