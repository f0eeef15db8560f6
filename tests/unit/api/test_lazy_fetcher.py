"""The fetcher of an API process, which is made for its first URL."""

from __future__ import annotations

import asyncio

import pytest

import penstock.api.serving.process as process


class Fetching:
    """Says which fetcher was asked."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.allowed = allowed

    async def fetch(self, url: str, *, field: str) -> Fetching:
        return self


async def test_first_fetches_that_come_at_once_count_against_the_same_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_make_fetcher", Fetching)
    lazy = process._LazyFetcher(("127.0.0.0/8",))
    asked = [lazy.fetch("http://a.example/", field="f") for _ in range(3)]
    first, *others = [*await asyncio.gather(*asked), await lazy.fetch("", field="f")]
    assert first.allowed == ("127.0.0.0/8",)
    assert all(one is first for one in others)
