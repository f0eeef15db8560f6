"""The Brave Search API, which needs a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.agent.web.engines.engine import Search, hits_of
from penstock.agent.web.engines.json_api import JsonApi, results_of
from penstock.dialog import SearchHit

BASE_URL: Final = "https://api.search.brave.com"
MAX_QUERY_CHARS: Final = 400
MAX_RESULTS: Final = 20
HINTS: Final = {
    401: "the operator must correct the API key",
    403: "the operator must correct the API key",
    422: "the query or the API key is not accepted",
    429: "too many searches; try again later",
}
# The API's headers for the user's location.
LOCATION_HEADERS: Final = {
    "city": "x-loc-city",
    "country": "x-loc-country",
    "region": "x-loc-state-name",
    "timezone": "x-loc-timezone",
}


class BraveEngine:
    """Implements `SearchEngine` with the Brave Search API.

    - `url`: base URL of the API; None: Brave's own.
    """

    def __init__(self, api_key: str, url: str | None = None) -> None:
        base = (url or BASE_URL).rstrip("/")
        headers = {"x-subscription-token": api_key}
        self._api = JsonApi("Brave Search", f"{base}/res/v1/web/search", headers, HINTS)

    async def search(self, search: Search) -> list[SearchHit]:
        """Implement `SearchEngine`."""
        parameters = {
            "q": search.query_with_operators(MAX_QUERY_CHARS),
            "count": str(min(search.max_results, MAX_RESULTS)),
            "text_decorations": "false",
        }
        answer = await self._api.get(parameters, _location_headers(search.location))
        results = results_of(answer, "web", "results")
        return hits_of(results, ("title", "url", "description"), search.max_results)

    def close(self) -> None:
        """Implement `SearchEngine`."""


def _location_headers(location: Mapping[str, str]) -> dict[str, str]:
    """Return the location as headers, without values that a header cannot carry."""
    return {
        header: location[key]
        for key, header in LOCATION_HEADERS.items()
        if key in location and location[key].isascii() and location[key].isprintable()
    }
