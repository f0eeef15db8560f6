"""The chat list in the sidebar, with the chats of the real server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import PHONE, SIZES, Visitor
from tests.e2e.conftest import RunningServer


class Chats:
    """The chats of a server, without the page."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url + "/ui/api")

    def create(self, title: str) -> str:
        return str(self._http.post("/chats", json={"title": title}).json()["id"])

    def add(self, title: str, text: str) -> str:
        """Store a chat with one message, without asking the model."""
        message = {"id": "m", "parent": None, "role": "user", "created_at": 1_700_000_000}
        document = {
            "format": "penstock-chat-1",
            "title": title,
            "settings": {},
            "tail": "m",
            "messages": [{**message, "blocks": [{"type": "text", "text": text}], "info": {}}],
        }
        return str(self._http.post("/chats/import", json=document).raise_for_status().json()["id"])

    def all(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._http.get("/chats?limit=200").json()["chats"]
        return found

    def clear(self) -> None:
        for chat in self.all():
            self._http.delete(f"/chats/{chat['id']}").raise_for_status()

    def titles(self) -> list[str]:
        return [chat["title"] for chat in self.all()]


@pytest.fixture
def chats(server: RunningServer) -> Iterator[Chats]:
    """The server's chats, none at the start."""
    found = Chats(server.url)
    found.clear()
    yield found


def entry(page: Page, title: str) -> Locator:
    return page.get_by_role("navigation").get_by_role("link", name=title, exact=True)


def choose(page: Page, title: str, action: str) -> None:
    """Choose an item of the menu of a chat."""
    entry(page, title).hover()
    page.get_by_role("button", name=f"More about {title}").click()
    page.get_by_role("menuitem", name=action).click()


def test_a_list_without_chats_says_so(visitor: Visitor, chats: Chats) -> None:
    page = visitor.open()
    expect(page.get_by_text("Your chats appear here.")).to_be_visible()


def test_chats_are_listed_newest_first_and_open(visitor: Visitor, chats: Chats) -> None:
    chats.create("Rivers")
    id = chats.create("Mountains")
    page = visitor.open()
    listed = page.get_by_role("region", name="Chats").get_by_role("link")
    expect(listed).to_have_text(chats.titles())
    entry(page, "Mountains").click()
    expect(page).to_have_url(f"{visitor.url}/ui/chats/{id}")
    expect(entry(page, "Mountains")).to_have_attribute("aria-current", "page")


def test_a_chat_is_renamed_in_its_place(visitor: Visitor, chats: Chats) -> None:
    chats.create("Rivers")
    page = visitor.open()
    choose(page, "Rivers", "Rename")
    field = page.get_by_role("textbox", name="Title of the chat")
    expect(field).to_be_focused()
    field.fill("Rivers of Asia")
    field.press("Enter")
    expect(entry(page, "Rivers of Asia")).to_be_focused()
    assert chats.titles() == ["Rivers of Asia"]
    choose(page, "Rivers of Asia", "Rename")
    page.get_by_role("textbox", name="Title of the chat").fill("never kept")
    page.keyboard.press("Escape")
    expect(entry(page, "Rivers of Asia")).to_be_visible()
    assert chats.titles() == ["Rivers of Asia"]


def test_a_chat_is_deleted_after_a_question(visitor: Visitor, chats: Chats) -> None:
    id = chats.create("Rivers")
    page = visitor.open(f"/ui/chats/{id}")
    choose(page, "Rivers", "Delete")
    dialog = page.get_by_role("dialog", name="Delete this chat?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(entry(page, "Rivers")).to_be_visible()
    assert chats.titles() == ["Rivers"]
    choose(page, "Rivers", "Delete")
    dialog.get_by_role("button", name="Delete").click()
    expect(entry(page, "Rivers")).to_have_count(0)
    expect(page).to_have_url(visitor.url + "/ui/")
    assert chats.titles() == []


def test_a_search_finds_titles_and_texts(visitor: Visitor, chats: Chats) -> None:
    chats.add("Geography", "the Danube passes ten countries")
    chats.add("Danube trip", "by bicycle")
    chats.add("Cooking", "lentils")
    page = visitor.open()
    page.get_by_role("searchbox", name="Search chats").fill("danube")
    listed = page.get_by_role("region", name="Chats").get_by_role("link")
    expect(listed).to_have_count(2)
    expect(page.get_by_text("passes ten countries")).to_be_visible()
    page.get_by_role("searchbox", name="Search chats").fill("no such word")
    expect(page.get_by_text("No chat has these words.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(listed).to_have_count(3)


def test_an_exported_chat_can_be_imported(visitor: Visitor, chats: Chats, tmp_path: Path) -> None:
    chats.add("Rivers", "Name three rivers.")
    page = visitor.open()
    with page.expect_download() as download:
        choose(page, "Rivers", "Export")
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)
    assert saved.name == "Rivers.json"
    assert json.loads(saved.read_text())["format"] == "penstock-chat-1"
    chats.clear()
    page.get_by_role("button", name="More about chats").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("menuitem", name="Import a chat…").click()
    chooser.value.set_files(saved)
    expect(page).to_have_url(re.compile(r"/ui/chats/chat_\w+"))
    expect(page.get_by_role("status", name="Messages")).to_contain_text("Imported “Rivers”.")
    assert chats.titles() == ["Rivers"]


def test_a_file_that_is_no_chat_is_refused(visitor: Visitor, chats: Chats, tmp_path: Path) -> None:
    visitor.expect_errors("status of 400")
    page = visitor.open()
    for name, content in [("picture.json", "no JSON"), ("other.json", '{"format": "other"}')]:
        wrong = tmp_path / name
        wrong.write_text(content)
        page.locator("input[type=file][accept*=json]").set_input_files(wrong)
        expect(page.get_by_role("status", name="Messages").locator(".danger").last).to_be_visible()
    assert chats.titles() == []


def test_other_tabs_follow_the_list(visitor: Visitor, chats: Chats) -> None:
    chats.create("Rivers")
    page, other = visitor.open(), visitor.open()
    choose(page, "Rivers", "Rename")
    page.get_by_role("textbox", name="Title of the chat").fill("Lakes")
    page.keyboard.press("Enter")
    expect(entry(other, "Lakes")).to_be_visible()
    choose(page, "Lakes", "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(entry(other, "Lakes")).to_have_count(0)


def test_older_chats_are_loaded_on_request(visitor: Visitor, chats: Chats) -> None:
    for number in range(45):
        chats.create(f"Chat {number}")
    page = visitor.open()
    listed = page.get_by_role("region", name="Chats").get_by_role("link")
    expect(listed).to_have_count(40)
    page.get_by_role("button", name="Show older chats").click()
    expect(listed).to_have_count(45)
    expect(page.get_by_role("button", name="Show older chats")).to_have_count(0)


@SIZES
def test_a_list_with_chats_has_no_serious_fault(
    visit: Callable[..., Visitor],
    server: RunningServer,
    chats: Chats,
    faults_of: Callable[[Page], list[str]],
    size: tuple[int, int],
) -> None:
    chats.create("Rivers")
    chats.create("<img src=x onerror=alert(1)> & a title that is far too long for the sidebar")
    visitor = visit(server, size=size)
    page = visitor.open()
    if size == PHONE:
        page.get_by_role("button", name="Show sidebar").click()
    expect(page.get_by_text("<img src=x")).to_be_visible()
    assert faults_of(page) == []
    page.get_by_role("button", name="More about Rivers").click(force=True)
    visitor.picture(page, f"chat-list-{size[0]}")
    assert faults_of(page) == []
    page.get_by_role("menuitem", name="Delete").click()
    visitor.picture(page, f"question-{size[0]}")
    assert faults_of(page) == []
