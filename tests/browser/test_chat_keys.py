"""The chat by keyboard, and what it remembers: drafts, places, versions, the wrapping of code."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.browser.chat_steps import (
    SHORT,
    answers,
    ask,
    composer,
    import_chat,
    open_chat,
    open_long_answer,
    questions,
    wait_for_end,
)
from tests.browser.conftest import Visitor


def is_in_view(place: Locator) -> bool:
    """Whether an element begins within the part of the chat that is shown."""
    return bool(
        place.evaluate(
            "place => { const edge = place.closest('[role=log]').getBoundingClientRect();"
            " const { top } = place.getBoundingClientRect();"
            " return top >= edge.top - 2 && top < edge.bottom }"
        )
    )


def test_a_chat_is_held_without_a_pointer(visitor: Visitor) -> None:
    page = open_chat(visitor)
    expect(composer(page)).to_be_focused()
    page.keyboard.type("first line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type(SHORT)
    page.keyboard.press("Enter")
    expect(questions(page)).to_contain_text("first line")
    wait_for_end(page)
    expect(composer(page)).to_be_focused()
    page.keyboard.press("ArrowUp")
    editor = page.get_by_role("textbox", name="Edit your message")
    expect(editor).to_be_focused()
    page.keyboard.press("Escape")
    expect(editor).to_have_count(0)
    composer(page).focus()
    page.keyboard.press("ArrowUp")
    editor.fill("Say goodbye.")
    page.keyboard.press("Control+Enter")
    expect(questions(page)).to_contain_text("2/2")
    expect(questions(page)).to_contain_text("Say goodbye.")
    wait_for_end(page)
    page.get_by_role("button", name="Write another answer").press("Enter")
    expect(answers(page)).to_contain_text("2/2", timeout=60_000)


def test_escape_stops_the_answer(visitor: Visitor) -> None:
    page = open_long_answer(visitor)
    page.keyboard.press("Escape")
    expect(page.get_by_text("You stopped this answer.")).to_be_visible()


def test_escape_closes_a_menu_and_the_answer_goes_on(visitor: Visitor) -> None:
    page = open_long_answer(visitor)
    page.get_by_role("button", name="Model:").click()
    expect(page.get_by_role("menu", name="Models")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("menu", name="Models")).to_have_count(0)
    expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()


def test_arrows_jump_between_questions(visitor: Visitor) -> None:
    page = visitor.open(import_chat(visitor.url, *["A line.\n\n" * 30] * 4))
    composer(page).focus()
    for number in (3, 2, 1):
        page.keyboard.press("Alt+ArrowUp")
        expect(page.get_by_text(f"question {number}", exact=True)).to_be_in_viewport()
        assert is_in_view(questions(page).nth(number))
    page.keyboard.press("Alt+ArrowDown")
    expect(page.get_by_text("question 2", exact=True)).to_be_in_viewport()
    page.get_by_role("button", name="Go to the end").click()
    expect(page.get_by_role("button", name="Go to the end")).to_have_count(0)


def test_a_chat_opens_where_it_was_left(visitor: Visitor) -> None:
    page = visitor.open(import_chat(visitor.url, *["A line.\n\n" * 30] * 6))
    expect(page.get_by_text("question 5", exact=True)).to_be_attached()
    for number in (5, 4, 3, 2):
        page.keyboard.press("Alt+ArrowUp")
        expect(page.get_by_text(f"question {number}", exact=True)).to_be_in_viewport()
    page.get_by_role("link", name="Models").click()
    page.go_back()
    expect(page.get_by_text("question 2", exact=True)).to_be_in_viewport()


def test_a_begun_text_stays_with_its_chat(visitor: Visitor) -> None:
    page = open_chat(visitor)
    composer(page).fill("not yet sent")
    page.keyboard.press("Control+Shift+O")
    expect(composer(page)).to_have_value("")
    page.go_back()
    expect(composer(page)).to_have_value("not yet sent")
    page.reload()
    expect(composer(page)).to_have_value("not yet sent")
    ask(page, SHORT)
    wait_for_end(page)
    page.reload()
    expect(composer(page)).to_have_value("")


def test_reading_on_is_not_disturbed_by_a_stream(visitor: Visitor) -> None:
    page = open_long_answer(visitor)
    log = page.get_by_role("log", name="Messages")
    page.wait_for_function(
        "() => { const log = document.querySelector('[role=log]');"
        " return log.scrollHeight > log.clientHeight + 300 }",
        timeout=60_000,
    )
    log.hover()
    page.mouse.wheel(0, -40)
    expect(page.get_by_role("button", name="Go to the end")).to_be_visible()
    top = log.evaluate("log => log.scrollTop")
    before = log.evaluate("log => log.scrollHeight")
    page.wait_for_function(
        "before => document.querySelector('[role=log]').scrollHeight > before",
        arg=before,
        timeout=60_000,
    )
    assert log.evaluate("log => log.scrollTop") == top
    page.get_by_role("button", name="Go to the end").click()
    expect(page.get_by_role("button", name="Go to the end")).to_have_count(0)
    page.keyboard.press("Escape")


def test_long_lines_of_code_wrap_in_all_blocks(visitor: Visitor) -> None:
    code = "```python\n" + "x = " + "1 + " * 80 + "1\n```"
    page = visitor.open(import_chat(visitor.url, code, code))
    blocks = page.locator("pre")
    scrolls = "block => block.scrollWidth > block.clientWidth"
    assert blocks.first.evaluate(scrolls)
    page.get_by_role("button", name="Wrap long lines").first.click()
    assert not blocks.first.evaluate(scrolls)
    page.reload()
    expect(blocks).to_have_count(2)
    assert not blocks.last.evaluate(scrolls)


def test_an_answer_is_copied_as_it_was_written(visitor: Visitor) -> None:
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "Some **bold** words\n\n- and a list"
    page = visitor.open(import_chat(visitor.url, text))
    page.get_by_role("button", name="Copy answer as Markdown").click()
    expect(page.get_by_role("button", name=re.compile("Copied"))).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == text
