"""Requests for embeddings, and their answers."""

from __future__ import annotations

import msgspec

from penstock.dialog.request import AdapterRevision


class EmbeddingRequest(msgspec.Struct, frozen=True):
    """A request for embeddings.

    - `inputs`: texts, or token ids of the model's own tokenizer.
    - `model`: None for the default model.
    - `adapter`: see GenerateRequest.
    - `truncate`: keep only the start of an input that is too long; otherwise it is an error.
    """

    inputs: tuple[str | tuple[int, ...], ...]
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
