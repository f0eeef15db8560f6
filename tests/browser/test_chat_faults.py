"""The chat in bad conditions: killed engines, restarted servers, slow networks, hostile texts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.chat_steps import (
    SHORT,
    answers,
    ask,
    composer,
    import_chat,
    open_chat,
    open_long_answer,
    stop,
    wait_for_end,
)
from tests.browser.conftest import Visitor
from tests.e2e.conftest import RunningServer

HOSTILE = """
<script>window.harmed = 1</script>
<img src=x onerror="window.harmed = 1">
[link](javascript:window.harmed=1)
![picture](https://attacker.invalid/pixel.png)
<iframe src="javascript:parent.harmed=1"></iframe>
<a href="https://attacker.invalid" onclick="window.harmed=1">x</a>
$\\href{javascript:window.harmed=1}{x}$ $\\includegraphics{https://attacker.invalid/x.png}$
```html
<script>window.harmed = 1</script>
```
<style>main { display: none }</style>
| <svg onload=window.harmed=1> |
|---|
| <details open ontoggle=window.harmed=1> |
"""


@pytest.mark.parametrize("role", ["assistant", "user"])
def test_hostile_texts_do_nothing(visitor: Visitor, role: str) -> None:
    texts = (HOSTILE, HOSTILE) if role == "assistant" else (HOSTILE,)
    page = visitor.open(import_chat(visitor.url, *texts, title="<img src=x onerror=harmed=1>"))
    expect(page.get_by_text("window.harmed = 1").first).to_be_visible()
    page.wait_for_timeout(300)  # for handlers that a broken page would run
    assert page.evaluate("window.harmed") is None
    assert page.locator("#app iframe, #app script, #app [onerror], #app [onclick]").count() == 0
    assert page.locator("a[href^='javascript']").count() == 0


def test_the_engine_killed_in_an_answer_is_reported_and_the_text_stays(
    visit: Callable[..., Visitor], default_model: object, built_page: None
) -> None:
    server = RunningServer()
    try:
        visitor = visit(server)
        visitor.expect_errors("Failed to load resource")
        page = open_long_answer(visitor)
        os.kill(server.engine_pid, signal.SIGKILL)
        expect(page.get_by_role("alert")).to_be_visible(timeout=60_000)
        assert len(answers(page).locator(".markdown").inner_text()) > 0
        page.get_by_role("button", name="Write another answer").click()
        expect(answers(page)).to_contain_text("2/2", timeout=60_000)
    finally:
        server.stop()


def test_a_server_restarted_in_an_answer_keeps_its_text(
    visit: Callable[..., Visitor], default_model: object, built_page: None, tmp_path: Path
) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/chats.db", "--blobs", str(tmp_path / "blobs"))
    first = RunningServer(*store)
    visitor = visit(first)
    visitor.expect_errors("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")
    visitor.expect_errors("ERR_INCOMPLETE_CHUNKED_ENCODING", "Failed to load resource")
    page = open_long_answer(visitor)
    port = first.url.rpartition(":")[2]
    first.stop()
    second = RunningServer(*store, "--port", port)
    try:
        expect(page.get_by_role("alert")).to_contain_text("stopped", timeout=60_000)
        kept = answers(page).locator(".markdown").inner_text()
        assert kept.strip()
        page.reload()
        expect(answers(page).locator(".markdown")).to_have_text(kept)
        page.get_by_role("button", name="Continue").click()
        page.wait_for_function(
            "n => document.querySelector('[aria-label=Answer] .markdown').innerText.length > n",
            arg=len(kept) + 10,
            timeout=60_000,
        )
        stop(page)
    finally:
        second.stop()


def test_a_slow_network_delays_the_answer_and_loses_nothing(visitor: Visitor) -> None:
    page = open_chat(visitor)
    network = page.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 800, "downloadThroughput": 5000, "uploadThroughput": 5000}
    network.send("Network.enable")
    network.send("Network.emulateNetworkConditions", slow)
    ask(page, SHORT)
    expect(composer(page)).to_have_value("")
    wait_for_end(page)
    said = answers(page).locator(".markdown").inner_text()
    network.send(
        "Network.emulateNetworkConditions", slow | {"latency": 0, "downloadThroughput": -1}
    )
    page.reload()
    expect(answers(page).locator(".markdown")).to_have_text(said)


def test_a_lost_network_is_reported_and_the_answer_caught_up(visitor: Visitor) -> None:
    visitor.expect_errors("ERR_INTERNET_DISCONNECTED", "ERR_NETWORK_CHANGED")
    page = open_long_answer(visitor)
    page.context.set_offline(True)
    ask_again = page.get_by_role("button", name="Stop the answer")
    ask_again.click()
    expect(page.get_by_text("The server cannot be reached.")).to_be_visible()
    page.context.set_offline(False)
    stop(page)
