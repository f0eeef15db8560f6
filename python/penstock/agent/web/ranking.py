"""Scores passages by their relevance to a query."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from penstock.agent.web.extra import require_package
from penstock.base.errors import ServiceError

Embed = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
"""Function that returns one embedding per text, all of the same length. Raises ServiceError."""

MAX_EMBEDDED: Final = 64
"""Maximum number of passages per search that are embedded, because an embedding costs a forward
pass."""
# Scripts without spaces between words: each character is a term.
_IDEOGRAPHS: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TERM: Final = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")


class Reranker(Protocol):
    """Scores passages."""

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return one score per passage. Higher is better; 0 and less: not relevant."""
        ...


class Bm25Reranker:
    """Implements `Reranker` with BM25 over the words of the passages."""

    def __init__(self) -> None:
        """Raises SettingsError if the library is not installed."""
        require_package("bm25s")

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Implement `Reranker`."""
        return await asyncio.to_thread(_bm25_scores, query, passages)


class EmbeddingReranker:
    """Implements `Reranker` with the cosine similarity of embeddings.

    Only the MAX_EMBEDDED passages with the best scores of `first` are embedded. The others score 0.
    If the model fails, the scores of `first` are returned.
    """

    def __init__(self, embed: Embed, first: Reranker) -> None:
        self._embed = embed
        self._first = first

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Implement `Reranker`."""
        first = await self._first.scores(query, passages)
        best = sorted(range(len(passages)), key=lambda index: -first[index])[:MAX_EMBEDDED]
        try:
            embeddings = await self._embed([query, *(passages[index] for index in best)])
        except ServiceError:
            return first
        scores = [0.0] * len(passages)
        for index, score in zip(best, _cosines(embeddings), strict=True):
            scores[index] = score
        return scores


def _terms(text: str) -> list[str]:
    return _TERM.findall(text.lower())


def _bm25_scores(query: str, passages: Sequence[str]) -> list[float]:
    import bm25s

    corpus = [_terms(passage) for passage in passages]
    terms = _terms(query)
    if not terms or not any(corpus):
        return [0.0] * len(passages)
    index = bm25s.BM25()
    index.index(corpus, show_progress=False)
    return [float(score) for score in index.get_scores(terms)]


def _cosines(embeddings: Sequence[Sequence[float]]) -> list[float]:
    """Return the cosine similarities of the first embedding and each other one."""
    import numpy as np

    vectors = np.asarray(embeddings, dtype=np.float32)
    lengths = np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
    unit = vectors / lengths[:, None]
    return [float(score) for score in unit[1:] @ unit[0]]
