"""Makes the web tools of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.agent.tools.web_page import WebPageTool
from penstock.agent.tools.web_search import WebSearchTool
from penstock.agent.web.domains import DomainFilter
from penstock.agent.web.engines import create_engine
from penstock.agent.web.extra import require_package
from penstock.agent.web.pages import PageReader
from penstock.agent.web.ranking import Bm25Reranker, Embed, EmbeddingReranker, Reranker
from penstock.agent.web.uses import Uses
from penstock.agent.web.web_search import WebSearch
from penstock.config import SearchSettings
from penstock.dialog import SearchTool
from penstock.fetch import AllowList

CHARS_PER_TOKEN: Final = 4
CONTEXT_TOKENS: Final = {"low": 4096, "medium": 8192, "high": 16384}
"""Tokens of one tool result, by the request's `context_size`."""


class WebTools:
    """The web search of one API process. Belongs to one event loop.

    - `settings`: the search engine.
    - `fetch_allow`: private addresses and networks whose pages may be read.
    - `embed`: embeds texts to rank passages; None: BM25 ranks them.
    """

    def __init__(
        self, settings: SearchSettings, fetch_allow: Sequence[str], embed: Embed | None = None
    ) -> None:
        """Raises SettingsError for unusable settings and missing packages, and ValueError for an
        invalid network in `fetch_allow`."""
        require_package("trafilatura")
        require_package("lxml_html_clean")  # trafilatura cannot be imported without it
        reranker: Reranker = Bm25Reranker()
        if embed is not None:
            reranker = EmbeddingReranker(embed, reranker)
        self._engine = create_engine(settings)
        self._pages = PageReader(AllowList(fetch_allow))
        self._search = WebSearch(self._engine, self._pages, reranker)

    def tools(self, request_tool: SearchTool) -> tuple[WebSearchTool, WebPageTool]:
        """Return the tools of one request: search, and page extraction. They count their uses
        together. Raises InvalidRequest if a domain is not valid."""
        domains = DomainFilter(request_tool.allowed_domains, request_tool.blocked_domains)
        uses = Uses(request_tool.max_uses)
        max_chars = CHARS_PER_TOKEN * CONTEXT_TOKENS[request_tool.context_size or "medium"]
        return (
            WebSearchTool(self._search, request_tool, domains, uses, max_chars),
            WebPageTool(self._pages, request_tool, domains, uses, max_chars),
        )

    def close(self) -> None:
        """End child processes and threads. May be called again."""
        self._engine.close()
        self._pages.close()

    async def wait_closed(self) -> None:
        """Wait until the child processes have ended, after `close`."""
        await self._pages.wait_closed()
