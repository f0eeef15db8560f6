"""`POST /v1/rerank`: the request and the answer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.api.schema import fields as f
from penstock.api.schema.constraints import Adapter
from penstock.dialog.ranges import MAX_INTEGER
from penstock.dialog.reranking import MAX_DOCUMENTS


class RerankDocument(Struct):
    """A document as an object with its text; a plain string is accepted too."""

    text: str


class RerankRequest(Struct, kw_only=True):
    """A query, and the documents to rank by relevance to the query."""

    query: f.NonEmpty
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    model: f.Model | None = None
    adapter: Adapter | None = None
    top_n: (
        Annotated[
            int,
            Meta(ge=1, le=MAX_INTEGER, description="Number of results, best first. Absent: all."),
        ]
        | None
    ) = None
    return_documents: bool | None = None
    truncate_sequence: (
        Annotated[bool, Meta(description="Keep the start of a document that is too long.")] | None
    ) = True


class RerankResult(Struct):
    """The score of one document. `index`: position of the document in the request. `document`:
    present if the request sets `return_documents`."""

    index: int
    relevance_score: Annotated[float, Meta(ge=0, le=1)]
    document: RerankDocument | UnsetType = UNSET


class RerankUsage(Struct):
    """The number of tokens of all query-document pairs."""

    prompt_tokens: int
    total_tokens: int


class RerankResponse(Struct):
    """The ranked documents, most relevant first. `adapter_generation`: the exact adapter that was
    used."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    adapter_generation: str | UnsetType = UNSET
