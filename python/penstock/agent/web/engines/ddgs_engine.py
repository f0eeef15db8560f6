"""The library `ddgs`, which reads the result pages of public search engines. Needs no key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from penstock.agent.web.engines.engine import Search, SearchFailed, hits_of
from penstock.agent.web.extra import require_package
from penstock.dialog import SearchHit

MAX_QUERY_CHARS: Final = 400
REQUEST_TIMEOUT_S: Final = 5
"""Time limit of one request of the library, which asks several engines in turn."""
THREADS: Final = 8
"""Maximum number of concurrent searches. A thread may work on after its search was cancelled, until
its requests end."""
DEFAULT_REGION: Final = "us-en"
# The library's regions: country and language.
REGIONS: Final = {
    **{"AR": "ar-es", "AT": "at-de", "AU": "au-en", "BE": "be-fr", "BR": "br-pt", "CA": "ca-en"},
    **{"CH": "ch-de", "CL": "cl-es", "CN": "cn-zh", "CO": "co-es", "CZ": "cz-cs", "DE": "de-de"},
    **{"DK": "dk-da", "ES": "es-es", "FI": "fi-fi", "FR": "fr-fr", "GB": "uk-en", "GR": "gr-el"},
    **{"HU": "hu-hu", "ID": "id-id", "IE": "ie-en", "IN": "in-en", "IT": "it-it", "JP": "jp-jp"},
    **{"KR": "kr-kr", "MX": "mx-es", "NL": "nl-nl", "NO": "no-no", "NZ": "nz-en", "PL": "pl-pl"},
    **{"PT": "pt-pt", "RO": "ro-ro", "RU": "ru-ru", "SE": "se-sv", "TR": "tr-tr", "TW": "tw-tzh"},
    **{"UA": "ua-uk", "UK": "uk-en", "US": "us-en", "ZA": "za-en"},
}


class DdgsEngine:
    """Implements `SearchEngine` with the library `ddgs`, in threads because its calls block."""

    def __init__(self) -> None:
        """Raises SettingsError if the library is not installed."""
        require_package("ddgs")
        self._threads = ThreadPoolExecutor(THREADS, "penstock-search")

    async def search(self, search: Search) -> list[SearchHit]:
        """Implement `SearchEngine`."""
        loop = asyncio.get_running_loop()
        results = await loop.run_in_executor(self._threads, _results_of, search)
        return hits_of(results, ("title", "href", "body"), search.max_results)

    def close(self) -> None:
        """Implement `SearchEngine`."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _results_of(search: Search) -> list[dict[str, Any]]:
    """Return the library's results. Raises SearchFailed."""
    from ddgs import DDGS
    from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

    try:
        return DDGS(timeout=REQUEST_TIMEOUT_S).text(
            search.query_with_operators(MAX_QUERY_CHARS),
            region=_region_of(search.location),
            max_results=search.max_results,
        )
    except RatelimitException:
        raise SearchFailed("too many searches; try again later") from None
    except TimeoutException:
        raise SearchFailed("the search engines did not answer in time") from None
    except DDGSException as error:
        if str(error).startswith("No results found"):
            return []
        raise SearchFailed("the search engines cannot be reached") from None


def _region_of(location: Mapping[str, str]) -> str:
    return REGIONS.get(location.get("country", "").upper(), DEFAULT_REGION)
