"""A Fetcher that is created when the first URL is fetched."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.fetch import Fetched, Fetcher


class LazyFetcher:
    """Fetches URLs as `fetch.Fetcher` does, whose HTTP client takes 0.1 s to load.

    - `allowed`: private addresses and networks that may be connected to.
    """

    def __init__(self, allowed: tuple[str, ...] = ()) -> None:
        self._allowed = allowed
        self._fetcher: Fetcher | None = None

    async def fetch(self, url: str, *, field: str) -> Fetched:
        """See `Fetcher.fetch`."""
        if self._fetcher is None:
            made = await asyncio.to_thread(_make_fetcher, self._allowed)
            self._fetcher = self._fetcher or made  # a concurrent fetch may have created one
        return await self._fetcher.fetch(url, field=field)


def _make_fetcher(allowed: tuple[str, ...]) -> Fetcher:
    from penstock.fetch import AllowList, Fetcher

    return Fetcher(AllowList(allowed))
