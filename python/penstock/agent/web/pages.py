"""Fetches web pages and turns them into text."""

from __future__ import annotations

from typing import Final, Literal

from penstock.agent.web.domains import DomainFilter
from penstock.agent.web.page_process import PageJob, PageText
from penstock.agent.web.page_workers import PAGE_TIMEOUT_S, PageFailed, PageWorkers
from penstock.base.errors import ServiceError
from penstock.fetch import AllowList, Fetched, Fetcher, FetchLimits
from penstock.fetch.connecting import Resolve

PAGE_LIMITS: Final = FetchLimits(
    max_bytes=4 * 1024 * 1024,
    max_buffered_bytes=64 * 1024 * 1024,
    max_redirects=5,
    timeout_s=8.0,
)
HTML_TYPES: Final = ("text/html", "application/xhtml+xml")
TEXT_TYPES: Final = (
    "application/json",
    "application/ld+json",
    "application/x-ndjson",
    "application/xml",
    "application/rss+xml",
    "application/atom+xml",
    "application/yaml",
    "application/x-yaml",
    "application/javascript",
    "application/toml",
)
_HTML_MARKS: Final = (b"<!doctype html", b"<html")
_SNIFFED_BYTES: Final = 256
_MAX_SHOWN_CHARS: Final = 60


class PageReader:
    """Reads pages under the rules of `penstock.fetch`: public addresses only, unless the operator
    allows others.

    - `allow`: the addresses that may be connected to.
    - `limits`: limits of one page.
    - `page_timeout_s`: time limit for the text of one page, after it was fetched.
    - `resolve`: resolves host names; None: the system's resolver.
    """

    def __init__(
        self,
        allow: AllowList,
        limits: FetchLimits = PAGE_LIMITS,
        page_timeout_s: float = PAGE_TIMEOUT_S,
        resolve: Resolve | None = None,
    ) -> None:
        self._fetcher = Fetcher(allow, limits, resolve, encodings=("gzip",))
        self._workers = PageWorkers(page_timeout_s)

    def close(self) -> None:
        """End the child processes. May be called again."""
        self._workers.close()

    async def wait_closed(self) -> None:
        """Wait until the child processes have ended, after `close`."""
        await self._workers.wait_closed()

    async def read(self, url: str, domains: DomainFilter, max_chars: int) -> PageText:
        """Return the text of a page: the main text of HTML, other texts as they are.

        `domains`: holds for the URL and for its redirects. `max_chars`: maximum length. Raises
        PageFailed.
        """
        if not domains.allows(url):
            raise PageFailed(
                "the URL must be an http: or https: URL without a user name, of a domain that the "
                "search may use"
            )
        try:
            page = await self._fetcher.fetch(url, field="url", allows_host=domains.allows_host)
        except ServiceError as error:
            raise PageFailed(error.message) from None
        job = PageJob(page.data, _kind_of(page), page.charset, max_chars)
        text = await self._workers.text_of(job)
        if text.error:
            raise PageFailed(text.error)
        return text


def _kind_of(page: Fetched) -> Literal["html", "text"]:
    """Return how to read a page. Raises PageFailed for types that are no text."""
    kind = page.mime_type
    if kind is None:
        start = page.data[:_SNIFFED_BYTES].lstrip().lower()
        return "html" if start.startswith(_HTML_MARKS) else "text"
    if kind in HTML_TYPES:
        return "html"
    if kind.startswith("text/") or kind in TEXT_TYPES or kind.endswith(("+json", "+xml")):
        return "text"
    shown = kind[:_MAX_SHOWN_CHARS] if kind.isprintable() else "this type"
    raise PageFailed(f"only web pages and texts are read, not {shown}")
