"""Requests for embeddings, and their answers."""

from __future__ import annotations

import msgspec

from penstock.dialog.message import Message
from penstock.dialog.request import AdapterRevision


class ConversationInput(msgspec.Struct, frozen=True):
    """An input with images or videos, which is embedded as one vector.

    - `messages`: a conversation; usually one message of the user with texts and media.
    - `part_paths`: see GenerateRequest.
    """

    messages: tuple[Message, ...]
    part_paths: tuple[tuple[str, ...], ...] = ()


class EmbeddingRequest(msgspec.Struct, frozen=True):
    """A request for embeddings.

    - `inputs`: texts, token ids of the model's own tokenizer, or conversations.
    - `model`: None for the default model.
    - `adapter`: see GenerateRequest.
    - `truncate`: keep only the start of an input that is too long; otherwise it is an error.
    """

    inputs: tuple[str | tuple[int, ...] | ConversationInput, ...]
    model: str | None = None
    adapter: str | AdapterRevision | None = None
    truncate: bool = False


class Embeddings(msgspec.Struct, frozen=True):
    """The answer to an EmbeddingRequest.

    - `vectors`: [inputs, width] little-endian float32.
    - `width`: numbers per vector.
    - `prompt_tokens`: tokens of all inputs.
    - `adapter_revision`: the revision that was used, None for the base model.
    """

    model: str
    vectors: bytes
    width: int
    prompt_tokens: int
    adapter_revision: str | None = None
