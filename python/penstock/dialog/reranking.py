"""Requests for reranking, and their answers."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.dialog.request import AdapterRevision

MAX_DOCUMENTS: Final = 2048


class RerankRequest(msgspec.Struct, frozen=True):
    """A query and the documents to rank. `top_n`: number of best documents to return, None for all.
    `truncate`: keep the start of a document that is too long. `model` None: the default one;
    `adapter`: see GenerateRequest."""

    query: str
    documents: tuple[str, ...]
    top_n: int | None = None
    model: str | None = None
    adapter: str | AdapterRevision | None = None
    truncate: bool = True


class RankedDocument(msgspec.Struct, frozen=True):
    """A document, by its `index` in the request, with its `score` from 0 to 1."""

    index: int
    score: float


class Ranking(msgspec.Struct, frozen=True):
    """The documents by falling relevance; of equal ones the lower index first. `prompt_tokens`:
    over all pairs. `adapter_revision`: the revision that was used, None for the base model."""

    model: str
    results: tuple[RankedDocument, ...]
    prompt_tokens: int
    adapter_revision: str | None = None
