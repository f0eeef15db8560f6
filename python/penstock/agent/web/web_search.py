"""Searches the web, reads the pages that were found, and chooses their best passages."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from penstock.agent.web.engines import Search, SearchEngine, SearchFailed
from penstock.agent.web.page_workers import PageFailed
from penstock.agent.web.pages import PageReader
from penstock.agent.web.passages import Passage, choose_passages, join_passages, split_text
from penstock.agent.web.ranking import Reranker
from penstock.base.time_limit import within
from penstock.dialog import SearchHit

FILTERED_FACTOR: Final = 2
"""Factor of the results that are requested if a filter may remove some."""
MAX_RANKED_CHARS: Final = 50_000
"""Beginning of each page that is divided into passages."""


@dataclass(frozen=True, slots=True)
class SearchTimes:
    """Time limits of one search in seconds.

    - `engine_s`: of the search engine.
    - `pages_s`: from the start of the search until the last page; pages that are not read until
      then keep their descriptions.
    - `total_s`: from the start until the result; passages that are not ranked until then keep the
      order of the engine.
    """

    engine_s: float = 8.0
    pages_s: float = 13.0
    total_s: float = 15.0


class WebSearch:
    """Searches with one engine."""

    def __init__(
        self,
        engine: SearchEngine,
        pages: PageReader,
        reranker: Reranker,
        times: SearchTimes = SearchTimes(),
    ) -> None:
        self._engine = engine
        self._pages = pages
        self._reranker = reranker
        self._times = times

    async def search(self, search: Search, max_chars: int) -> list[SearchHit]:
        """Return the pages that were found, the most relevant first, with their best passages.

        `max_chars`: maximum length of titles, URLs, descriptions and passages together. Raises
        SearchFailed.
        """
        start = asyncio.get_running_loop().time()
        hits = await self._find(search)
        texts = await self._read(search, hits, start + self._times.pages_s)
        return await self._with_passages(search, hits, texts, max_chars, start)

    async def _find(self, search: Search) -> list[SearchHit]:
        """Return the engine's results that pass the filter."""
        domains, wanted = search.domains, search.max_results
        if domains.allowed or domains.blocked:
            wanted *= FILTERED_FACTOR
        try:
            found = await within(
                self._times.engine_s, self._engine.search(replace(search, max_results=wanted))
            )
        except asyncio.TimeoutError:
            raise SearchFailed("the search engine did not answer in time") from None
        return [hit for hit in found if domains.allows(hit.url)][: search.max_results]

    async def _read(
        self, search: Search, hits: Sequence[SearchHit], deadline: float
    ) -> list[str | None]:
        """Read all pages side by side. Returns their texts, None for pages that failed."""
        tasks = [asyncio.ensure_future(self._text_of(search, hit)) for hit in hits]
        try:
            if tasks:
                left = deadline - asyncio.get_running_loop().time()
                await asyncio.wait(tasks, timeout=max(0.0, left))
        finally:
            for task in tasks:
                task.cancel()
            texts = await asyncio.gather(*tasks, return_exceptions=True)
        return [_text_or_raise(text) for text in texts]

    async def _text_of(self, search: Search, hit: SearchHit) -> str | None:
        try:
            return (await self._pages.read(hit.url, search.domains, MAX_RANKED_CHARS)).text
        except PageFailed:
            return None

    async def _with_passages(
        self,
        search: Search,
        hits: Sequence[SearchHit],
        texts: Sequence[str | None],
        max_chars: int,
        start: float,
    ) -> list[SearchHit]:
        passages = [
            Passage(page, position, text)
            for page, whole in enumerate(texts)
            for position, text in enumerate(split_text(whole or ""))
        ]
        left = start + self._times.total_s - asyncio.get_running_loop().time()
        scores = await self._scores(search.query, passages, left)
        for hit in hits:
            max_chars -= len(hit.title) + len(hit.url) + len(hit.description)
        by_page: dict[int, list[Passage]] = defaultdict(list)
        for passage in choose_passages(passages, scores, max_chars):
            by_page[passage.page].append(passage)
        order = [*by_page, *(page for page in range(len(hits)) if page not in by_page)]
        return [
            msgspec.structs.replace(hits[page], content=join_passages(by_page[page]))
            for page in order
        ]

    async def _scores(
        self, query: str, passages: Sequence[Passage], left: float
    ) -> Sequence[float]:
        texts = [passage.text for passage in passages]
        try:
            return await within(max(0.0, left), self._reranker.scores(query, texts))
        except asyncio.TimeoutError:
            return [1.0 / (1 + passage.position) for passage in passages]


def _text_or_raise(text: str | BaseException | None) -> str | None:
    """Return the result of a task, None for a task that was cancelled."""
    if isinstance(text, asyncio.CancelledError):
        return None
    if isinstance(text, BaseException):
        raise text
    return text
