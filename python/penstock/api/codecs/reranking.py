"""Reranking: `POST /v1/rerank`, compatible with Jina and Cohere."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import orjson

from penstock.api.codecs.openai_chunks import generation_field
from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.codecs.request_fields.sampling import decode_adapter
from penstock.api.schema import reranking as r
from penstock.base.ids import new_id
from penstock.dialog import Ranking, RerankRequest


class DecodedRerank(msgspec.Struct, frozen=True):
    """A decoded body. `return_documents`: the answer repeats the text of each document."""

    request: RerankRequest
    return_documents: bool
    stream: ClassVar[bool] = False


def decode(body: bytes) -> DecodedRerank:
    """Decode a rerank request. Raises InvalidRequest, which names the wrong field.

    Unknown fields are ignored, including those of Jina and Cohere (`max_tokens_per_doc`,
    `rank_fields`, ...).
    """
    asked = decode_body(body, r.RerankRequest)
    request = RerankRequest(
        query=asked.query,
        documents=tuple(text if isinstance(text, str) else text.text for text in asked.documents),
        top_n=asked.top_n,
        model=asked.model or None,
        adapter=decode_adapter(asked.adapter),
        truncate=asked.truncate_sequence is not False,
    )
    return DecodedRerank(request, asked.return_documents or False)


def encode(decoded: DecodedRerank, answer: Ranking) -> bytes:
    """Return the JSON of the answer, with the documents' texts if the request asks for them."""
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
