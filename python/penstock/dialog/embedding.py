"""Requests for embeddings, and their answers."""

from __future__ import annotations

import msgspec

from penstock.dialog.request import AdapterRevision


class EmbeddingRequest(msgspec.Struct, frozen=True):
    """Inputs to embed: texts, or token ids of the model's own tokenizer. `truncate`: keep the start
    of an input that is too long. `model` None: the default one; `adapter`: see GenerateRequest."""

    inputs: tuple[str | tuple[int, ...], ...]
    model: str | None = None
    adapter: str | AdapterRevision | None = None
    truncate: bool = False


class Embeddings(msgspec.Struct, frozen=True):
    """The vectors of a request: `width` numbers for each input, in order, as little-endian float32.
    `adapter_revision`: the revision that was used, None for the base model."""

    model: str
    vectors: bytes
    width: int
    prompt_tokens: int
    adapter_revision: str | None = None
