"""SearXNG: a metasearch engine that operators run themselves."""

from __future__ import annotations

from typing import Final

from penstock.agent.web.engines.engine import Search, hits_of
from penstock.agent.web.engines.json_api import JsonApi, results_of
from penstock.dialog import SearchHit

MAX_QUERY_CHARS: Final = 400
HINTS: Final = {
    403: "the operator must add json to search.formats in SearXNG's settings.yml",
    429: "too many searches; try again later",
}


class SearxngEngine:
    """Implements `SearchEngine` with the JSON API of a SearXNG instance.

    - `url`: base URL of the instance.
    - `api_key`: sent as bearer token, for instances behind a proxy that checks it.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._api = JsonApi("SearXNG", f"{url.rstrip('/')}/search", headers, HINTS)

    async def search(self, search: Search) -> list[SearchHit]:
        """Implement `SearchEngine`."""
        query = search.query_with_operators(MAX_QUERY_CHARS)
        answer = await self._api.get({"q": query, "format": "json"}, {})
        results = results_of(answer, "results")
        return hits_of(results, ("title", "url", "content"), search.max_results)

    def close(self) -> None:
        """Implement `SearchEngine`."""
