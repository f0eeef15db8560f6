"""The vocabulary of reranking: a query and documents in, the documents by falling relevance out."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.dialog.request import AdapterRevision

MAX_DOCUMENTS: Final = 2048


class RerankRequest(msgspec.Struct, frozen=True):
    """`top_n`: so many of the best documents, None for all. `truncate`: keep the start of a
    document that leaves no room for itself. `model` None: the default one; `adapter` as of
    GenerateRequest."""

    query: str
    documents: tuple[str, ...]
    top_n: int | None = None
    model: str | None = None
    adapter: str | AdapterRevision | None = None
    truncate: bool = True


class RankedDocument(msgspec.Struct, frozen=True):
    """`index` among the documents of the request; `score` from 0 to 1."""

    index: int
    score: float


class Ranking(msgspec.Struct, frozen=True):
    """`results`: the best first, the lower index first where two are equal. `prompt_tokens`: of all
    pairs. `adapter_revision`: exactly what was used, None for the base model."""

    model: str
    results: tuple[RankedDocument, ...]
    prompt_tokens: int
    adapter_revision: str | None = None
