"""The vocabulary of embeddings: texts in, a vector for each out."""

from __future__ import annotations

import msgspec

from penstock.dialog.request import AdapterRevision


class EmbeddingRequest(msgspec.Struct, frozen=True):
    """`inputs`: texts, or token ids as the model's own tokenizer counts them, taken as they are.
    `truncate`: keep the start of an input that is longer than the model takes. `model` None: the
    default one; `adapter` as of GenerateRequest."""

    inputs: tuple[str | tuple[int, ...], ...]
    model: str | None = None
    adapter: str | AdapterRevision | None = None
    truncate: bool = False


class Embeddings(msgspec.Struct, frozen=True):
    """`vectors`: `width` numbers for each input, in their order, as little-endian float32.
    `adapter_revision`: exactly what was used, None for the base model."""

    model: str
    vectors: bytes
    width: int
    prompt_tokens: int
    adapter_revision: str | None = None
