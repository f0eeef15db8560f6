"""Tools in the chat: Python, shell, search, approvals and files. The tools, the sandbox and the
store are real; the tokens come from the scripted engine, the only double."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from penstock.config import AgentSettings, SearchSettings
from tests.browser.chat_steps import answers, ask, open_chat, wait_for_end
from tests.browser.conftest import COLOURS, SIZES, Visitor
from tests.browser.threaded import Served, served
from tests.support.agent_loops import call
from tests.support.servers.agent_server import PYTHON_AND_SHELL, agent_server, python, shell
from tests.support.small_web import article, content, small_web

pytest.importorskip("matplotlib", reason="draws the figure")

TOOLS: Final = {"tools": {"code": True, "shell": True}}
FIGURE: Final = """import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
plt.figure(figsize=(4, 3))
plt.plot([1, 4, 9, 16])
plt.show()
print("drawn")"""
HOSTILE: Final = "<img src=x onerror=window.harmed=1><script>window.harmed=1</script>"


def tool_server(
    texts: Sequence[str],
    agent: AgentSettings = PYTHON_AND_SHELL,
    found: Callable[[str], Sequence[dict[str, str]]] | None = None,
) -> AbstractContextManager[Served]:
    """Run a server whose model writes `texts`, one a round.

    `found`: the results of searches; it gets the address of the small web.
    """

    @asynccontextmanager
    async def make() -> AsyncIterator[str]:
        async with AsyncExitStack() as stack:
            settings = agent
            if found is not None:
                web = await stack.enter_async_context(small_web())
                results = json.dumps({"results": found(web.url())})
                web.pages["/search"] = content(results, "application/json")
                web.pages["/page"] = content(article("Rivers carry water to the sea. " * 8))
                search = SearchSettings("searxng", web.url("/"))
                settings = msgspec.structs.replace(agent, enable_search=True, search=search)
            server = await stack.enter_async_context(agent_server(texts, settings))
            yield server.serving.url

    return served(make)


def tool(page: Page, name: str | re.Pattern[str]) -> Locator:
    """Return the heading of a tool call that has ended, which opens and closes it."""
    return answers(page).locator("summary").filter(has_text=name)


def asking() -> AgentSettings:
    return msgspec.structs.replace(PYTHON_AND_SHELL, agent_permission="ask")


@SIZES
@COLOURS
def test_tools_show_what_they_ran_and_gave(
    visit: Callable[..., Visitor],
    built_page: None,
    faults_of: Callable[[Page], list[str]],
    size: tuple[int, int],
    colours: str,
) -> None:
    texts = [
        python(FIGURE),
        shell("echo hello; exit 3"),
        python(f"print({HOSTILE!r}); open('notes.txt', 'w').write('kept')", "notes.txt"),
        python("1 / 0"),
        "All **done**.",
    ]
    with tool_server(texts) as server:
        visitor = visit(server, size=size, colours=colours)
        page = open_chat(visitor, **TOOLS)
        ask(page, "go")
        wait_for_end(page)
        figure = answers(page).get_by_role("button", name="Enlarge figure.png")
        expect(figure).to_be_visible()
        visitor.picture(page, f"tools-closed-{size[0]}-{colours}")
        expect(tool(page, "echo hello")).to_contain_text("exit 3")
        for heading in answers(page).locator("summary").all():
            heading.click()
        expect(answers(page).get_by_label("Output").first).to_contain_text("drawn")
        expect(answers(page)).to_contain_text("ZeroDivisionError")
        expect(answers(page)).to_contain_text(HOSTILE)
        assert page.evaluate("window.harmed") is None
        visitor.picture(page, f"tools-open-{size[0]}-{colours}")
        assert faults_of(page) == []
        with page.expect_download() as download:
            answers(page).get_by_role("link", name=re.compile("notes.txt")).click()
        assert download.value.path().read_text() == "kept"
        figure.click()
        picture = page.get_by_role("dialog").get_by_role("img", name="figure.png")
        expect(picture).to_be_visible()
        assert picture.evaluate("image => image.naturalWidth") > 100
        visitor.picture(page, f"lightbox-{size[0]}-{colours}")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_search_results_are_links(visit: Callable[..., Visitor], built_page: None) -> None:
    def found(web: str) -> list[dict[str, str]]:
        good = {"title": "About rivers", "url": f"{web}page", "content": "Rivers carry water."}
        bad = {"title": HOSTILE, "url": "javascript:alert(1)", "content": HOSTILE}
        return [good, bad]

    texts = [call("service_search_the_web", query="rivers"), "Rivers flow."]
    with tool_server(texts, found=found) as server:
        visitor = visit(server)
        page = open_chat(visitor, tools={"search": True})
        ask(page, "What do rivers do?")
        wait_for_end(page)
        heading = tool(page, "Searched: rivers")
        expect(heading).to_contain_text("1 result")
        heading.click()
        visitor.picture(page, "search")
        link = answers(page).get_by_role("link", name=re.compile("About rivers"))
        expect(link).to_have_attribute("href", re.compile("/page$"))
        expect(link).to_have_attribute("rel", re.compile("noopener"))
        assert page.evaluate("window.harmed") is None


@SIZES
def test_a_call_waits_for_approval(
    visit: Callable[..., Visitor],
    built_page: None,
    faults_of: Callable[[Page], list[str]],
    size: tuple[int, int],
) -> None:
    texts = [
        *(python("print('first')"), "One."),
        *(python("print('second')"), "Two."),
        *(python("print('third')"), "Three."),
        *(python("print('fourth')"), "Four."),
    ]
    with tool_server(texts, asking()) as server:
        visitor = visit(server, size=size)
        page = open_chat(visitor, **TOOLS)
        card = answers(page).get_by_role("region", name="A tool asks for permission")
        ask(page, "go")
        expect(card).to_contain_text("print('first')")
        visitor.picture(page, f"approval-{size[0]}")
        assert faults_of(page) == []
        page.reload()  # the question is kept by the server
        card.get_by_role("button", name="Approve").click()
        expect(answers(page).last).to_contain_text("One.")
        ask(page, "again")
        card.get_by_role("button", name="Deny").click()
        expect(answers(page).last).to_contain_text("You denied this call.")
        expect(answers(page).last).to_contain_text("Two.")
        expect(tool(page, "second")).to_contain_text("denied")
        wait_for_end(page)
        ask(page, "once more")
        card.get_by_role("button", name="Always in this chat").click()
        expect(answers(page).last).to_contain_text("Three.")
        wait_for_end(page)
        ask(page, "and more")
        expect(answers(page).last).to_contain_text("Four.")  # without a question
        visitor.picture(page, f"approved-{size[0]}")


def test_a_tool_call_is_stopped(visit: Callable[..., Visitor], built_page: None) -> None:
    with tool_server([python("import time; time.sleep(600)"), "Never."]) as server:
        visitor = visit(server)
        page = open_chat(visitor, **TOOLS)
        ask(page, "wait")
        expect(tool(page, "Python")).to_be_visible()
        visitor.picture(page, "tool-running")
        page.keyboard.press("Escape")
        expect(page.get_by_text("You stopped this answer.")).to_be_visible()
        expect(tool(page, "Python")).to_contain_text("failed")
