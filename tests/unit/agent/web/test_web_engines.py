"""Search engines: SearXNG and Brave as loopback servers, ddgs by its library's interface."""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import ddgs.ddgs
import pytest
from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

from penstock.agent.web import extra
from penstock.agent.web.domains import DomainFilter
from penstock.agent.web.engines import Search, SearchFailed, create_engine
from penstock.agent.web.engines.ddgs_engine import DdgsEngine
from penstock.agent.web.engines.json_api import MAX_BYTES
from penstock.config import SearchSettings, SettingsError
from penstock.dialog import SearchHit
from tests.support.small_web import SmallWeb, content, moved, small_web

RESULT = {"title": "A <b>page</b>", "url": "https://a.test/x", "content": "About\0 a &amp; b"}
HIT = SearchHit(title="A page", url="https://a.test/x", description="About a & b")


def as_json(value: Any) -> bytes:
    return content(json.dumps(value), "application/json")


def sent(web: SmallWeb) -> dict[str, str]:
    """The query parameters of the last request."""
    target = web.seen[-1].split(" ")[1]
    return {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}


async def searxng(web: SmallWeb, search: Search) -> list[SearchHit]:
    return await create_engine(SearchSettings("searxng", web.url("/"))).search(search)


async def brave(web: SmallWeb, search: Search) -> list[SearchHit]:
    return await create_engine(SearchSettings("brave", web.url("/"), "secret")).search(search)


async def test_searxng_returns_cleaned_results_and_sends_the_query() -> None:
    async with small_web(search=as_json({"results": [RESULT]})) as web:
        assert await searxng(web, Search("water & power")) == [HIT]
    assert sent(web) == {"q": "water & power", "format": "json"}
    assert "authorization" not in web.seen[0].lower()


async def test_searxng_sends_its_key_as_bearer_token() -> None:
    async with small_web(search=as_json({"results": []})) as web:
        engine = create_engine(SearchSettings("searxng", web.url(), "secret"))
        assert await engine.search(Search("x")) == []
    assert "authorization: bearer secret" in web.seen[0].lower()


async def test_brave_returns_results_and_sends_key_and_location() -> None:
    result = {"title": "A page", "url": "https://a.test/x", "description": "About a &amp; b"}
    location = {"city": "Zürich", "country": "CH", "region": "x\r\ny: z", "timezone": "Europe/Rome"}
    async with small_web() as web:
        web.pages["/res/v1/web/search"] = as_json({"web": {"results": [result]}})
        assert await brave(web, Search("x", max_results=30, location=location)) == [HIT]
    head = web.seen[0].lower()
    assert "x-subscription-token: secret\r\n" in head and sent(web)["count"] == "20"
    assert "x-loc-country: ch\r\n" in head and "x-loc-timezone: europe/rome\r\n" in head
    assert "x-loc-city" not in head and "y: z" not in head


@pytest.mark.parametrize(
    ("domains", "query"),
    [
        (DomainFilter(["a.test"]), "q site:a.test"),
        (DomainFilter(["a.test", "b.test"]), "q (site:a.test OR site:b.test)"),
        (DomainFilter(blocked=["a.test", "b.test"]), "q -site:a.test -site:b.test"),
        (DomainFilter([f"{n}.test" for n in range(9)]), "q"),
        (DomainFilter(["a" * 400 + ".test"], ["b.test"]), "q -site:b.test"),
    ],
)
async def test_domains_become_operators_if_they_fit(domains: DomainFilter, query: str) -> None:
    async with small_web(search=as_json({"results": []})) as web:
        await searxng(web, Search("q", domains=domains))
    assert sent(web)["q"] == query


@pytest.mark.parametrize(
    "results",
    [
        None,
        {},
        "text",
        [1, None, "x", [], {}],
        [{"title": "no URL"}],
        [{"url": 5}],
        [{"url": "javascript:alert(1)"}, {"url": "http://user@a.test/"}],
        [{"url": "http://a\x00.test/"}],
    ],
)
async def test_unusable_results_are_left_out(results: Any) -> None:
    async with small_web(search=as_json({"results": results})) as web:
        assert await searxng(web, Search("x")) == []


async def test_results_are_unique_and_limited_in_number_and_length() -> None:
    results = [
        {"url": f"https://a.test/{n // 2}", "title": "t" * 9999, "content": None} for n in range(40)
    ]
    async with small_web(search=as_json({"results": results})) as web:
        hits = await searxng(web, Search("x", max_results=5))
    assert [hit.url for hit in hits] == [f"https://a.test/{n}" for n in range(5)]
    assert {len(hit.title) for hit in hits} == {200}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n", "status 403: the operator must add json"),
        (b"HTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n", "status 429: too many searches"),
        (b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", "status 500"),
        (moved("http://127.0.0.1:1/search"), "status 302"),
        (content("<html>"), "invalid JSON"),
        (content("[" * 500_000), "invalid JSON"),
        (content(b"\xff\xfe\x00"), "invalid JSON"),
        (content(b" " * (MAX_BYTES + 1)), f"more than {MAX_BYTES} bytes"),
        (content(b"no gzip", "text/html", "content-encoding: gzip"), "cannot be reached"),
        (b"SSH-2.0\r\n", "cannot be reached"),
        (b"", "cannot be reached"),
    ],
)
async def test_failed_searches_say_why(answer: bytes, message: str) -> None:
    async with small_web(search=answer) as web:
        with pytest.raises(SearchFailed, match=message):
            await searxng(web, Search("x"))
    assert len(web.seen) == 1


async def test_error_of_a_keyed_engine_does_not_contain_the_key() -> None:
    async with small_web() as web:
        web.pages["/res/v1/web/search"] = b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"
        with pytest.raises(SearchFailed, match="API key") as caught:
            await brave(web, Search("x"))
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SearchSettings("searxng"), r"\[agent.search\] url is missing"),
        (SearchSettings("searxng", "unix:/x"), r"\[agent.search\] url must be"),
        (SearchSettings("searxng", "localhost"), r"\[agent.search\] url must be"),
        (SearchSettings("searxng", "http://"), r"\[agent.search\] url must be"),
        (SearchSettings("brave"), r"\[agent.search\] api_key is missing"),
    ],
)
def test_unusable_settings_are_rejected_by_their_key(
    settings: SearchSettings, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        create_engine(settings)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Results of the library's `text`, or an exception; then the calls that it received."""
    script: list[Any] = []

    def text(self: ddgs.ddgs.DDGS, query: str, **options: Any) -> list[dict[str, Any]]:
        result = script.pop(0)
        script.append((query, options))
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    monkeypatch.setattr(ddgs.ddgs.DDGS, "text", text)
    return script


async def test_ddgs_results_become_hits(library: list[Any]) -> None:
    library.append([{"title": "A page", "href": "https://a.test/x", "body": "About a &amp; b"}])
    engine = create_engine(SearchSettings())
    search = Search("q", location={"country": "de"}, domains=DomainFilter(["a.test"]))
    assert isinstance(engine, DdgsEngine) and await engine.search(search) == [HIT]
    assert library == [("q site:a.test", {"region": "de-de", "max_results": 10})]
    engine.close()


async def test_ddgs_without_results_finds_nothing(library: list[Any]) -> None:
    library.append(DDGSException("No results found."))
    assert await DdgsEngine().search(Search("q")) == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RatelimitException("x"), "too many searches"),
        (TimeoutException("x"), "did not answer in time"),
        (DDGSException("ConnectError: http://proxy.internal"), "cannot be reached"),
    ],
)
async def test_ddgs_errors_are_told_without_details(
    library: list[Any], error: Exception, message: str
) -> None:
    library.append(error)
    with pytest.raises(SearchFailed, match=message) as caught:
        await DdgsEngine().search(Search("q"))
    assert "internal" not in caught.value.message


def test_options_that_ddgs_gets_exist_in_its_search() -> None:
    options = inspect.signature(ddgs.ddgs.DDGS._search_sync).parameters
    assert {"query", "region", "max_results"} <= options.keys()
    assert "timeout" in inspect.signature(ddgs.ddgs.DDGS).parameters
    assert {"title", "href", "body"} <= ddgs.results.TextResult().__dict__.keys()


def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "ddgs")
    with pytest.raises(SettingsError, match=r"package ddgs: pip install 'penstock\[agent\]'"):
        create_engine(SearchSettings())
    extra.require_package("json")
