"""Runs reranking requests: scores each document with a query and sorts the documents."""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np

from penstock.adapters.view import AdapterView
from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.dialog import RankedDocument, Ranking, RerankRequest
from penstock.dialog.reranking import MAX_DOCUMENTS
from penstock.engine.protocol import Engine
from penstock.generation.embeddings.engine_calls import EmbeddingCalls, Tokens
from penstock.models.tokenizer.tokenizer_data import EmbeddingParts
from penstock.text.tokenizers.pair_tokenizer import PairTokenizer, load_pair_tokenizer

LONG_INPUT_CHARS: Final = 8192
"""Requests with more characters in total are tokenized in a thread."""


class RerankRunner:
    """Runs the reranking requests of one model, which computes a logit for each pair of query and
    document. To be called from the engine's asyncio loop.

    `adapters`: the adapters that requests may name, None if the model supports no adapters.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: PairTokenizer,
        adapters: AdapterView | None = None,
    ) -> None:
        self._engine = engine
        self._calls = EmbeddingCalls(engine, adapters)
        self._tokenizer = tokenizer

    @classmethod
    def load(
        cls, engine: Engine, parts: EmbeddingParts, adapters: AdapterView | None = None
    ) -> RerankRunner:
        """Make the runner of an engine. `parts`: the tokenizer and template of its model. Raises
        ModelError."""
        live = (adapters or AdapterView()) if parts.supports_lora else None
        return cls(engine, load_pair_tokenizer(parts.tokenizer, parts.template), live)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Return the documents in order of falling relevance. Cancelling the call aborts pairs that
        are not computed yet.

        Raises InvalidRequest, ContextLengthExceeded, and the engine's errors: Overloaded,
        Unavailable, EngineFault.
        """
        _check(request)
        revision = self._calls.resolve(request.adapter)
        info = self._engine.info
        if len(request.query) + sum(map(len, request.documents)) > LONG_INPUT_CHARS:
            pairs = await asyncio.to_thread(self._pairs, request, info.max_model_len)
        else:
            pairs = self._pairs(request, info.max_model_len)
        sequences, second_start = pairs
        starts = (second_start,) * len(sequences) if self._tokenizer.typed else ()
        logits, revision = await self._calls.vectors(sequences, request.adapter, revision, starts)
        return Ranking(
            model=request.model or info.model_id,
            results=_ranked(b"".join(logits), request.top_n),
            prompt_tokens=sum(map(len, sequences)),
            adapter_revision=revision or None,
        )

    def _pairs(self, request: RerankRequest, max_model_len: int) -> tuple[list[Tokens], int]:
        """Return (token ids of the query with each document, index of the first document token)."""
        end = self._tokenizer.end
        room = max_model_len - len(end)
        prefixes = self._tokenizer.prefixes(request.query, request.documents, room)
        start = prefixes.query_tokens
        if start >= room:
            raise ContextLengthExceeded(
                f"this model takes {max_model_len} tokens; the query leaves none to documents",
                field="query",
            )
        sequences = []
        for index, ids in enumerate(prefixes.token_ids):
            if len(ids) > room and not request.truncate:
                raise _exceeded(index, max_model_len, room - start)
            sequences.append((*ids[:room], *end))
        return sequences, start


def _ranked(logits: bytes, top_n: int | None) -> tuple[RankedDocument, ...]:
    """Return the best `top_n` documents, best first. A score is the sigmoid of the document's
    logit, computed in float64. `logits`: one float32 per document."""
    numbers = np.frombuffer(logits, "<f4").astype(np.float64)
    scores = np.exp(-np.logaddexp(0.0, -numbers))
    order = np.argsort(-numbers, kind="stable")[:top_n]
    return tuple(RankedDocument(int(index), float(scores[index])) for index in order)


def _check(request: RerankRequest) -> None:
    if not request.query:
        raise InvalidRequest("the query must not be empty", field="query")
    if not request.documents:
        raise InvalidRequest("documents must not be empty", field="documents")
    if len(request.documents) > MAX_DOCUMENTS:
        raise InvalidRequest(
            f"documents may hold at most {MAX_DOCUMENTS} entries", field="documents"
        )
    if request.top_n is not None and request.top_n < 1:
        raise InvalidRequest("top_n must be at least 1", field="top_n")


def _exceeded(index: int, max_model_len: int, room: int) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"this model takes {max_model_len} tokens, of which the query leaves {room} to a document;"
        f" documents[{index}] makes more; truncate_sequence keeps its start",
        field=f"documents[{index}]",
    )
