"""Steps that tests of the chat share: to open a chat, to ask, to wait, to stop."""

from __future__ import annotations

import re
from typing import Any, Final

import httpx
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Visitor

# Greedily, the default model answers this with one line. Sampled, it may go on for minutes.
SHORT: Final = "Say hello."
# With this grammar, an answer goes on for minutes.
ENDLESS: Final = {"grammar": {"type": "regex", "value": "([a-z]{2,8} ){4000}"}, "max_tokens": 7000}


def composer(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message", exact=True)


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


def questions(page: Page) -> Locator:
    return page.get_by_role("article", name="You")


def ask(page: Page, text: str) -> None:
    composer(page).fill(text)
    page.get_by_role("form", name="Write a message").get_by_role("button", name="Send").click()


def wait_for_end(page: Page) -> None:
    """Wait until the last answer is complete."""
    expect(answers(page).last).to_have_attribute("aria-busy", "false", timeout=60_000)


def open_chat(visitor: Visitor, **settings: Any) -> Page:
    """Open a new chat with these settings; without settings, its answers are short."""
    body = {"settings": settings or {"max_tokens": 24}}
    made = httpx.post(f"{visitor.url}/ui/api/chats", json=body).raise_for_status().json()
    return visitor.open(f"/ui/chats/{made['id']}")


def open_long_answer(visitor: Visitor) -> Page:
    """Open a chat whose answers go on for minutes, ask, and wait until some of it is there."""
    page = open_chat(visitor, **ENDLESS)
    ask(page, SHORT)
    expect(answers(page).last).to_contain_text(re.compile(r"\S{1,}"), timeout=60_000)
    expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()
    return page


def stop(page: Page) -> None:
    page.get_by_role("button", name="Stop the answer").click()
    expect(page.get_by_text("You stopped this answer.")).to_be_visible()


def import_chat(url: str, *texts: str, title: str = "Imported", role: str = "assistant") -> str:
    """Store a chat with a question and these answers below one another. Returns its address."""
    messages: list[dict[str, Any]] = []
    parent = None
    for index, text in enumerate(texts):
        for kind in ("user", role):
            id = f"{kind}{index}"
            block = {"type": "text", "text": text if kind == role else f"question {index}"}
            message = {"id": id, "parent": parent, "role": kind, "created_at": 1_700_000_000}
            messages.append({**message, "blocks": [block], "info": {}})
            parent = id
    document: dict[str, Any] = {
        "format": "penstock-chat-1",
        "title": title,
        "settings": {},
        "tail": parent,
        "messages": messages,
    }
    stored = httpx.post(f"{url}/ui/api/chats/import", json=document).raise_for_status().json()
    return f"/ui/chats/{stored['id']}"
