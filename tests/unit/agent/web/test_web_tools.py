"""The two web tools, from the model's arguments to its result, over a loopback web."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.agent.tools.tool import BadArguments, CallContext, ToolOutcome
from penstock.agent.web.domains import DomainFilter
from penstock.agent.web.engines import Search, SearchFailed, create_engine
from penstock.agent.web.pages import PageReader
from penstock.agent.web.ranking import Bm25Reranker
from penstock.agent.web.web_search import SearchTimes, WebSearch
from penstock.agent.web.web_tools import WebTools
from penstock.base.errors import InvalidRequest
from penstock.config import SearchSettings, SettingsError
from penstock.dialog import GenerateRequest, SearchActivity, SearchTool, ToolCall
from penstock.fetch import AllowList
from tests.support.small_web import (
    LOOPBACK,
    Answer,
    SmallWeb,
    article,
    content,
    moved,
    silence,
    small_web,
)

CONTEXT = CallContext("s", "c", 0, ToolCall("id", "name", "{}"), GenerateRequest(messages=()))
ANY = SearchTool()
PENSTOCK = "A penstock carries water from the reservoir to the turbine."
CATS = "Cats sleep for most of the day."


def results(web: SmallWeb, *urls: str) -> bytes:
    found = [
        {"title": f"Title {n}", "url": url, "content": f"About {n}"} for n, url in enumerate(urls)
    ]
    return content(json.dumps({"results": found}), "application/json")


@asynccontextmanager
async def searching(
    *paths: str, hosts: tuple[str, ...] = ("127.0.0.1",), **pages: Answer
) -> AsyncIterator[tuple[SmallWeb, WebTools]]:
    """Serve pages and a SearXNG instance that finds `paths` on each of the hosts."""
    async with small_web(**pages) as web:
        urls = [web.url(path, host) for host in hosts for path in paths]
        web.pages["/search"] = results(web, *urls)
        tools = WebTools(SearchSettings("searxng", web.url("/")), LOOPBACK)
        yield web, tools
        tools.close()
        await tools.wait_closed()


async def run(tool: Any, arguments: str) -> ToolOutcome:
    outcome: ToolOutcome = await tool.run(tool.decode(arguments), CONTEXT)
    return outcome


async def searched(tools: WebTools, request_tool: SearchTool = ANY) -> ToolOutcome:
    return await run(tools.tools(request_tool)[0], '{"query": "penstock water"}')


def found(outcome: ToolOutcome) -> list[dict[str, str]]:
    assert isinstance(outcome.result, dict) and not outcome.is_error, outcome.result
    output: list[dict[str, str]] = outcome.result["output"]
    return output


def error_of(outcome: ToolOutcome) -> str:
    assert isinstance(outcome.result, dict) and outcome.is_error
    assert isinstance(outcome.activity, SearchActivity) and outcome.activity.status == "error"
    (message,) = outcome.result.values()
    assert list(outcome.result) == ["error"]
    return str(message)


async def test_search_returns_pages_with_the_most_relevant_first() -> None:
    async with searching(
        "/cats", "/penstock", cats=content(article(CATS * 5)), penstock=content(article(PENSTOCK))
    ) as (web, tools):
        outcome = await searched(tools)
        output = found(outcome)
        assert [entry["url"] for entry in output] == [web.url("/penstock"), web.url("/cats")]
    assert output[0].keys() == {"title", "description", "url", "content"}
    assert output[0]["title"] == "Title 1" and output[0]["description"] == "About 1"
    assert PENSTOCK in output[0]["content"] and CATS in output[1]["content"]
    assert isinstance(outcome.result, dict) and outcome.result["sources"] == ["127.0.0.1"]
    activity = outcome.activity
    assert isinstance(activity, SearchActivity) and activity.status == "success"
    assert activity.query == "penstock water" and len(activity.hits) == 2


async def test_pages_that_fail_keep_their_descriptions() -> None:
    async with searching(
        "/good", "/image", "/inside", "/missing",
        good=content(article(PENSTOCK)), image=content(b"x", "image/png"),
        inside=moved("http://10.0.0.1/"),
    ) as (_, tools):  # fmt: skip
        output = found(await searched(tools))
    assert [bool(entry["content"]) for entry in output] == [True, False, False, False]
    assert [entry["description"] for entry in output] == [f"About {n}" for n in range(4)]


async def test_search_without_results_succeeds() -> None:
    async with searching() as (_, tools):
        outcome = await searched(tools)
    assert outcome.result == {"sources": [], "output": []} and not outcome.is_error


async def test_at_most_ten_pages_are_read() -> None:
    paths = [f"/p{n}" for n in range(30)]
    async with searching(*paths) as (web, tools):
        assert len(found(await searched(tools))) == 10
    assert len(web.seen) == 11


async def test_results_outside_of_the_domains_are_neither_shown_nor_fetched() -> None:
    hosts = ("127.0.0.1", "127.0.0.1.evil.test", "x@127.0.0.1", "localhost")
    async with searching("/a", hosts=hosts, a=content(PENSTOCK, "text/plain")) as (web, tools):
        allowed = found(await searched(tools, SearchTool(allowed_domains=("127.0.0.1",))))
        blocked = SearchTool(blocked_domains=("127.0.0.1", "evil.test", "localhost"))
        assert [entry["url"] for entry in allowed] == [web.url("/a")]
        assert found(await searched(tools, blocked)) == []
    assert len([head for head in web.seen if head.startswith("GET /a")]) == 1


@pytest.mark.parametrize(("size", "chars"), [("low", 16384), ("medium", 32768), ("high", 65536)])
async def test_context_size_limits_the_result(size: Any, chars: int) -> None:
    page = content("Penstock water. " * 10_000, "text/plain")
    async with searching("/a", "/b", a=page, b=page) as (_, tools):
        output = found(await searched(tools, SearchTool(context_size=size)))
        page_tool = tools.tools(SearchTool(context_size=size))[1]
        extracted = await run(page_tool, json.dumps({"url": output[0]["url"]}))
    total = sum(len("".join(entry.values())) for entry in output)
    assert 0.9 * chars < total <= chars
    assert isinstance(extracted.result, dict)
    text = json.loads(extracted.result["output"])["content"]
    assert 0.9 * chars < len(text) < chars + 100 and text.endswith("[The page continues.]")


async def test_page_tool_returns_the_text_of_a_page() -> None:
    async with searching(a=content(article(PENSTOCK))) as (web, tools):
        url = web.url("/a")
        outcome = await run(tools.tools(SearchTool())[1], json.dumps({"url": f" {url} "}))
    assert isinstance(outcome.result, dict) and outcome.result["sources"] == ["127.0.0.1"]
    output = json.loads(outcome.result["output"])
    assert output["url"] == url and PENSTOCK in output["content"]
    assert isinstance(outcome.activity, SearchActivity) and outcome.activity.status == "success"


@pytest.mark.parametrize(
    "url", ["", "file:///etc/passwd", "http://10.0.0.1/", "10.0.0.1/x", "http://127.0.0.1\0/",
            "http://[::ffff:169.254.169.254]/latest", "http://user@127.0.0.1/"],
)  # fmt: skip
async def test_page_tool_refuses_private_and_unusable_urls(url: str) -> None:
    async with searching() as (_, tools):
        outcome = await run(tools.tools(SearchTool())[1], json.dumps({"url": url}))
    assert "not public" in error_of(outcome) or "must be an http:" in error_of(outcome)


async def test_page_tool_keeps_to_the_domains() -> None:
    async with searching(a=content(PENSTOCK, "text/plain")) as (web, tools):
        page_tool = tools.tools(SearchTool(allowed_domains=("example.com",)))[1]
        outcome = await run(page_tool, json.dumps({"url": web.url("/a")}))
    assert "must be an http:" in error_of(outcome) and not web.seen


async def test_uses_of_both_tools_are_limited_per_request() -> None:
    async with searching(a=content(PENSTOCK, "text/plain")) as (web, tools):
        search, page = tools.tools(SearchTool(max_uses=2))
        arguments = json.dumps({"url": web.url("/a")})
        assert not (await run(page, arguments)).is_error
        assert not (await run(search, '{"query": "x"}')).is_error
        for outcome in (await run(search, '{"query": "x"}'), await run(page, arguments)):
            assert "limit of 2" in error_of(outcome)
        assert not (await searched(tools, SearchTool(max_uses=2))).is_error


@pytest.mark.parametrize(
    ("query", "message"), [("", "empty"), (" \n\0", "empty"), ("x" * 401, "longer than 400")]
)
async def test_unusable_queries_are_refused(query: str, message: str) -> None:
    async with searching() as (web, tools):
        outcome = await run(tools.tools(SearchTool())[0], json.dumps({"query": query}))
    assert message in error_of(outcome) and not web.seen


async def test_failure_of_the_engine_is_an_error_result() -> None:
    async with searching() as (web, tools):
        del web.pages["/search"]
        assert "SearXNG answered with status 404" in error_of(await searched(tools))


@pytest.mark.parametrize("arguments", ["[]", '{"query": 5}', "{}", "not JSON"])
async def test_arguments_of_another_shape_are_bad(arguments: str) -> None:
    async with searching() as (_, tools):
        search, page = tools.tools(SearchTool())
    for tool in (search, page):
        with pytest.raises(BadArguments):
            tool.decode(arguments)


async def test_tools_declare_their_functions() -> None:
    location = {"city": "Zürich\u202e", "country": "CH", "timezone": "Europe/Zurich", "region": ""}
    async with searching() as (_, tools):
        search, page = tools.tools(SearchTool(location=location))
        other = tools.tools(SearchTool(search_description="S", extract_description="E"))
    assert search.info.name == search.function.name == "service_search_the_web"
    assert page.info.name == page.function.name == "service_website_content_extractor"
    assert (search.info.label, page.info.label) == ("Web search", "Web page extraction")
    assert search.reads_only and page.reads_only
    assert search.function.parameters is not None
    assert search.function.parameters["required"] == ["query"]
    description = search.function.description or ""
    assert "near Zürich, CH." in description and "time zone is Europe/Zurich" in description
    assert [tool.function.description for tool in other] == ["S", "E"]
    assert search.describe(search.decode('{"query": "x"}')) == SearchActivity(query="x")
    assert page.describe(page.decode('{"url": "x"}')) == SearchActivity(url="x")


async def test_invalid_domains_of_a_request_are_rejected() -> None:
    async with searching() as (_, tools):
        with pytest.raises(InvalidRequest, match="not a domain"):
            tools.tools(SearchTool(allowed_domains=("not a domain",)))


async def test_given_embeddings_rank_the_pages() -> None:
    async def embed(texts: Any) -> list[list[float]]:
        return [
            [1.0, 0.0] if "Cats" in text or text == "penstock" else [0.0, 1.0] for text in texts
        ]

    async with searching(
        "/p", "/c", p=content(PENSTOCK, "text/plain"), c=content(CATS, "text/plain")
    ) as (web, _):
        tools = WebTools(SearchSettings("searxng", web.url("/")), LOOPBACK, embed)
        outcome = await run(tools.tools(SearchTool())[0], '{"query": "penstock"}')
        tools.close()
        await tools.wait_closed()
    assert CATS in found(outcome)[0]["content"]


def test_missing_package_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.agent.web.extra.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'penstock\[agent\]'"):
        WebTools(SearchSettings(), ())


@asynccontextmanager
async def limited(web: SmallWeb, times: SearchTimes) -> AsyncIterator[WebSearch]:
    pages = PageReader(AllowList(LOOPBACK))
    engine = create_engine(SearchSettings("searxng", web.url("/")))
    yield WebSearch(engine, pages, Bm25Reranker(), times)
    pages.close()
    await pages.wait_closed()


async def test_slow_engine_ends_the_search() -> None:
    async with small_web(search=silence) as web, limited(web, SearchTimes(0.1, 5, 5)) as search:
        with pytest.raises(SearchFailed, match="in time"):
            await search.search(Search("x"), 1000)


async def test_slow_pages_keep_their_descriptions() -> None:
    async with small_web(slow=silence) as web, limited(web, SearchTimes(5, 0.2, 10)) as search:
        web.pages["/search"] = results(web, web.url("/slow"))
        (hit,) = await search.search(Search("x", domains=DomainFilter()), 1000)
    assert hit.description == "About 0" and hit.content == ""


async def test_slow_ranking_keeps_the_order_of_the_engine() -> None:
    class Slow:
        async def scores(self, query: str, passages: Any) -> list[float]:
            await asyncio.Event().wait()
            return []

    page = content(PENSTOCK, "text/plain")
    async with small_web(a=page, b=page) as web, limited(web, SearchTimes(10, 10, 10)) as search:
        web.pages["/search"] = results(web, web.url("/a"), web.url("/b"))
        search._reranker, search._times = Slow(), SearchTimes(10, 10, 2)
        hits = await search.search(Search("x"), 1000)
    assert [hit.url for hit in hits] == [web.url("/a"), web.url("/b")] and hits[1].content


async def test_cancelled_search_leaves_no_task() -> None:
    async with searching("/slow", slow=silence) as (web, tools):
        before = asyncio.all_tasks()
        task = asyncio.create_task(searched(tools))
        while not any(head.startswith("GET /slow") for head in web.seen):
            await asyncio.sleep(0.001)
        servers = asyncio.all_tasks() - before - {task}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = [t for t in servers if not t.done() and "serve" not in repr(t.get_coro())]
        assert left == []
