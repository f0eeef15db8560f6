"""Reranking: the body of `POST /v1/rerank`, in the shape of Jina's and Cohere's, and its answer."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import orjson

from penstock.api.codecs.openai_chunks import generation_field
from penstock.api.codecs.request_fields.fields import Fields, decode_object, kind_of
from penstock.api.codecs.request_fields.sampling import decode_adapter
from penstock.base.ids import new_id
from penstock.dialog import Ranking, RerankRequest
from penstock.dialog.reranking import MAX_DOCUMENTS

WANTED = "an array of strings or of objects with a text"


class DecodedRerank(msgspec.Struct, frozen=True):
    """A body understood: what to rerank, and whether the answer quotes the documents."""

    request: RerankRequest
    return_documents: bool
    stream: ClassVar[bool] = False


def decode(body: bytes) -> DecodedRerank:
    """Raises InvalidRequest naming the field that is wrong. What else Jina and Cohere know
    (`max_tokens_per_doc`, `rank_fields`, ...) is without effect, as every unknown field."""
    fields = decode_object(body)
    query = fields.required_string("query")
    if not query:
        fields.refuse("query", "must not be empty")
    truncate = fields.boolean("truncate_sequence")
    request = RerankRequest(
        query=query,
        documents=_documents(fields),
        top_n=fields.integer("top_n", 1),
        model=fields.string("model") or None,
        adapter=decode_adapter(fields),
        truncate=True if truncate is None else truncate,
    )
    return DecodedRerank(request, fields.boolean("return_documents") or False)


def encode(decoded: DecodedRerank, answer: Ranking) -> bytes:
    """The JSON of the answer."""
    results: list[dict[str, Any]] = []
    for ranked in answer.results:
        result: dict[str, Any] = {"index": ranked.index, "relevance_score": ranked.score}
        if decoded.return_documents:
            result["document"] = {"text": decoded.request.documents[ranked.index]}
        results.append(result)
    body = {
        "id": new_id("rerank-"),
        "object": "list",
        "model": answer.model,
        "results": results,
        "usage": {"prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens},
        **generation_field(answer.adapter_revision),
    }
    return orjson.dumps(body)


def _documents(fields: Fields) -> tuple[str, ...]:
    values = fields.array("documents", WANTED)
    if values is None:
        fields.refuse_missing("documents", WANTED)
    if not values:
        fields.refuse("documents", "must not be empty")
    if len(values) > MAX_DOCUMENTS:
        fields.refuse("documents", f"may hold at most {MAX_DOCUMENTS} entries, not {len(values)}")
    return tuple(_text(fields, f"documents[{i}]", value) for i, value in enumerate(values))


def _text(fields: Fields, key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if type(value) is not dict:
        wanted = "a string or an object with a text"
        fields.refuse(key, f"must be {wanted}, not {kind_of(value)}", code="invalid_type")
    return Fields(value, key).required_string("text")
