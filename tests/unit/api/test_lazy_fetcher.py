"""The fetcher of an API process, which is created for the first URL."""

from __future__ import annotations

import asyncio

import pytest

from penstock.agent import lazy_fetcher


class Fetching:
    """Reports which fetcher was called."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.allowed = allowed

    async def fetch(self, url: str, *, field: str) -> Fetching:
        return self


async def test_concurrent_first_fetches_share_their_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lazy_fetcher, "_make_fetcher", Fetching)
    lazy = lazy_fetcher.LazyFetcher(("127.0.0.0/8",))
    asked = [lazy.fetch("http://a.example/", field="f") for _ in range(3)]
    first, *others = [*await asyncio.gather(*asked), await lazy.fetch("", field="f")]
    assert first.allowed == ("127.0.0.0/8",)
    assert all(one is first for one in others)
