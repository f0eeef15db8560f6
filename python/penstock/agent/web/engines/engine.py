"""The interface of a search engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from penstock.agent.web.cleaning import (
    MAX_DESCRIPTION_CHARS,
    MAX_TITLE_CHARS,
    clean_snippet,
)
from penstock.agent.web.domains import DomainFilter, host_of
from penstock.dialog import SearchHit

MAX_OPERATORS: Final = 8
"""Maximum number of domains that become operators of a query. Engines refuse long queries."""


class SearchFailed(Exception):
    """A search failed. `message`: for the model; it contains no text of the engine."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Search:
    """One search.

    - `query`: the words to search for.
    - `max_results`: maximum number of results.
    - `location`: the user's approximate location: keys city, country, region, timezone.
    - `domains`: the filter that the results will go through.
    """

    query: str
    max_results: int = 10
    location: Mapping[str, str] = field(default_factory=dict)
    domains: DomainFilter = field(default_factory=DomainFilter)

    def query_with_operators(self, max_chars: int) -> str:
        """Return the query with `site:` operators for the domains, if they fit in `max_chars`.

        Allowed domains are left out unless all of them fit, because operators for some of them
        would exclude the others.
        """
        query = self.query
        allowed = " OR ".join(f"site:{domain}" for domain in self.domains.allowed)
        if allowed and len(self.domains.allowed) <= MAX_OPERATORS:
            query = _joined(query, f"({allowed})" if " " in allowed else allowed, max_chars)
        for domain in self.domains.blocked[:MAX_OPERATORS]:
            query = _joined(query, f"-site:{domain}", max_chars)
        return query


class SearchEngine(Protocol):
    """A search engine."""

    async def search(self, search: Search) -> list[SearchHit]:
        """Return results in the engine's order, without page contents. Raises SearchFailed. The
        caller limits the time and filters the results."""
        ...

    def close(self) -> None:
        """Release threads. May be called again."""
        ...


def hits_of(
    results: Iterable[Any], keys: tuple[str, str, str], max_results: int
) -> list[SearchHit]:
    """Return cleaned hits from an engine's decoded JSON, without repeated URLs.

    `keys`: the keys of title, URL and description. Results without a usable URL are left out.
    """
    hits: dict[str, SearchHit] = {}
    for result in results:
        if not isinstance(result, dict):
            continue
        title, url, description = (_text(result.get(key)) for key in keys)
        if host_of(url) is None or url in hits:
            continue
        hits[url] = SearchHit(
            title=clean_snippet(title, MAX_TITLE_CHARS),
            url=url,
            description=clean_snippet(description, MAX_DESCRIPTION_CHARS),
        )
        if len(hits) == max_results:
            break
    return list(hits.values())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _joined(query: str, operator: str, max_chars: int) -> str:
    longer = f"{query} {operator}"
    return longer if len(longer) <= max_chars else query
