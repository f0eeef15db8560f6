"""Requests for reranking, and their answers."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.dialog.request import AdapterRevision

MAX_DOCUMENTS: Final = 2048


class RerankRequest(msgspec.Struct, frozen=True):
    """A request to rank documents by their relevance to a query.

    - `top_n`: number of documents to return, None for all.
    - `model`: None for the default model.
    - `adapter`: see GenerateRequest.
    - `truncate`: keep only the start of a document that is too long; otherwise it is an error.
    """

    query: str
    documents: tuple[str, ...]
    top_n: int | None = None
    model: str | None = None
    adapter: str | AdapterRevision | None = None
    truncate: bool = True


class RankedDocument(msgspec.Struct, frozen=True):
    """A ranked document. `index`: its index in the request. `score`: its relevance, 0 to 1."""

    index: int
    score: float


class Ranking(msgspec.Struct, frozen=True):
    """The answer to a RerankRequest.

    - `results`: documents in order of falling relevance; documents with equal relevance in order of
      their index.
    - `prompt_tokens`: tokens of all pairs of query and document.
    - `adapter_revision`: the revision that was used, None for the base model.
    """

    model: str
    results: tuple[RankedDocument, ...]
    prompt_tokens: int
    adapter_revision: str | None = None
