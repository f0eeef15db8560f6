"""The chat, with the real model: answers, branches, stops, reloads, settings, attachments."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.chat_steps import (
    SHORT,
    answers,
    ask,
    composer,
    import_chat,
    open_chat,
    open_long_answer,
    questions,
    stop,
    wait_for_end,
)
from tests.browser.conftest import COLOURS, PHONE, SIZES, Visitor
from tests.e2e.conftest import RunningServer


@SIZES
@COLOURS
def test_a_question_is_answered_and_found_again(
    visit: Callable[..., Visitor],
    server: RunningServer,
    faults_of: Callable[[Page], list[str]],
    size: tuple[int, int],
    colours: str,
) -> None:
    visitor = visit(server, size=size, colours=colours)
    page = visitor.open()
    visitor.picture(page, f"welcome-{size[0]}-{colours}")
    ask(page, SHORT)
    wait_for_end(page)
    expect(page.get_by_text(re.compile(r"\d+ tokens · [\d.,]+ tok/s"))).to_be_visible()
    expect(page).to_have_url(re.compile(r"/ui/chats/chat_\w+$"))
    expect(page).to_have_title(re.compile("Say hello"))
    said = answers(page).inner_text()
    visitor.picture(page, f"chat-{size[0]}-{colours}")
    assert faults_of(page) == []
    page.reload()
    expect(answers(page)).to_contain_text(said.split("\n")[0])
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_answer_goes_on_over_a_reload_and_in_a_second_tab(visitor: Visitor) -> None:
    page = open_long_answer(visitor)
    page.reload()
    expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()
    other = visitor.open(page.url.removeprefix(visitor.url))
    expect(answers(other)).to_contain_text(re.compile(r"\S"))
    before = len(answers(other).inner_text())
    other.wait_for_function(
        "before => document.querySelector('[aria-label=Answer]').innerText.length > before + 20",
        arg=before,
        timeout=60_000,
    )
    stop(page)
    expect(other.get_by_text("You stopped this answer.")).to_be_visible()
    assert answers(other).inner_text() == answers(page).inner_text()


def test_a_stopped_answer_is_continued(visitor: Visitor) -> None:
    page = open_long_answer(visitor)
    stop(page)
    kept = answers(page).locator(".markdown").inner_text()
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()
    page.wait_for_function(
        "n => document.querySelector('[aria-label=Answer] .markdown').innerText.length > n + 10",
        arg=len(kept),
        timeout=60_000,
    )
    stop(page)
    assert answers(page).locator(".markdown").inner_text().startswith(kept[:20])


def test_an_edited_question_is_a_branch_of_its_own(visitor: Visitor) -> None:
    page = open_chat(visitor)
    ask(page, SHORT)
    wait_for_end(page)
    first = answers(page).locator(".markdown").inner_text()
    questions(page).hover()
    page.get_by_role("button", name="Edit message").click()
    page.get_by_role("textbox", name="Edit your message").fill("Say goodbye.")
    questions(page).get_by_role("button", name="Send").click()
    expect(questions(page)).to_contain_text("Say goodbye.")
    expect(questions(page)).to_contain_text("2/2")
    wait_for_end(page)
    questions(page).get_by_role("button", name="Previous version").click()
    expect(questions(page)).to_contain_text(SHORT)
    expect(answers(page).locator(".markdown")).to_have_text(first)
    page.reload()
    expect(questions(page)).to_contain_text(SHORT)


def test_another_answer_is_a_version_beside_the_first(visitor: Visitor) -> None:
    page = open_chat(visitor)
    ask(page, SHORT)
    wait_for_end(page)
    page.get_by_role("button", name="Write another answer").click()
    expect(answers(page)).to_contain_text("2/2", timeout=60_000)
    page.get_by_role("button", name="Previous version").click()
    expect(answers(page)).to_contain_text("1/2")


def test_an_answer_can_be_edited(visitor: Visitor) -> None:
    page = open_chat(visitor)
    ask(page, SHORT)
    wait_for_end(page)
    page.get_by_role("button", name="Edit answer").click()
    page.get_by_role("textbox", name="Edit the answer").fill("My **own** words")
    page.get_by_role("button", name="Save").click()
    expect(answers(page).locator("strong")).to_have_text("own")


def test_settings_last_and_reach_the_model(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_role("button", name="Settings of the chat").click()
    panel = page.get_by_role("complementary", name="Settings of the chat")
    panel.get_by_label("System prompt").fill("Answer in one word.")
    panel.get_by_label("Longest answer, in tokens").fill("5")
    panel.get_by_label("Seed").fill("7")
    ask(page, "Tell me a story.")
    wait_for_end(page)
    expect(page.get_by_text("The answer reached its greatest length.")).to_be_visible()
    page.reload()
    page.get_by_role("button", name="Settings of the chat").click()
    expect(panel.get_by_label("System prompt")).to_have_value("Answer in one word.")
    expect(panel.get_by_label("Longest answer, in tokens")).to_have_value("5")


def test_a_format_constrains_the_answer(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_role("button", name="Settings of the chat").click()
    page.get_by_text("Format of the answer").click()
    page.get_by_label("The answer must match").select_option("regex")
    field = page.get_by_role("textbox", name="Regular expression")
    field.fill("(yes|no)")
    field.blur()
    ask(page, "Is water wet?")
    wait_for_end(page)
    expect(answers(page).locator(".markdown")).to_have_text(re.compile(r"^\s*(yes|no)\s*$"))
    page.get_by_label("The answer must match").select_option("json_schema")
    schema = page.get_by_role("textbox", name="JSON schema")
    schema.fill('{"type": ')
    schema.blur()
    expect(page.get_by_text(re.compile("JSON"))).not_to_have_count(0)
    expect(schema).to_have_attribute("aria-invalid", "true")


def test_a_wrong_setting_is_shown_and_taken_back(visitor: Visitor) -> None:
    visitor.expect_errors("400")
    page = open_chat(visitor)
    ask(page, SHORT)
    wait_for_end(page)
    page.get_by_role("button", name="Settings of the chat").click()
    field = page.get_by_label("Presence penalty")
    field.fill("99")
    expect(page.get_by_text(re.compile("presence_penalty"))).to_be_visible()
    expect(field).to_have_value("")


def test_tokens_show_their_alternatives(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_role("button", name="Settings of the chat").click()
    page.get_by_text("Model", exact=True).click()
    page.get_by_role("switch", name="Show the alternatives of each token").check()
    ask(page, SHORT)
    wait_for_end(page)
    tokens = page.get_by_role("group", name="Tokens of the answer")
    tokens.locator("span").first.hover()
    expect(page.get_by_role("row")).to_have_count(6)
    expect(page.get_by_role("row").first).to_contain_text(re.compile(r"\d+\.\d %"))


def test_a_text_file_reaches_the_model(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_label("Files", exact=True).set_input_files(
        {"name": "note.txt", "mimeType": "text/plain", "buffer": b"The word is gherkin."}
    )
    expect(page.get_by_text("20 B")).to_be_visible()
    ask(page, "Repeat the text of the file.")
    wait_for_end(page)
    link = questions(page).get_by_role("link", name=re.compile("note.txt"))
    with page.expect_download() as download:
        link.click()
    assert download.value.suggested_filename == "note.txt"
    page.reload()
    expect(link).to_be_visible()


def test_an_image_that_the_model_does_not_see_is_refused(visitor: Visitor) -> None:
    visitor.expect_errors("Failed to load resource")
    page = visitor.open()
    pixel = bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63"
        "f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
    )
    page.get_by_label("Files", exact=True).set_input_files(
        {"name": "dot.png", "mimeType": "image/png", "buffer": pixel}
    )
    expect(page.get_by_text("The model does not read this kind of file")).to_be_visible()
    ask(page, "What is this?")
    expect(page.get_by_role("alert")).to_contain_text("image")
    expect(page.get_by_role("button", name="Enlarge dot.png")).to_be_visible()


def test_formulas_code_and_tables_are_drawn(visitor: Visitor) -> None:
    formulas = "Let $x^2$:\n\n$$\\int_0^1 x\\,dx$$"
    text = f"{formulas}\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    page = visitor.open(import_chat(visitor.url, text))
    expect(page.locator(".katex").first).to_be_visible()
    expect(page.locator(".katex-display")).to_have_count(1)
    expect(page.locator("pre .language-built_in")).to_have_text("print")
    expect(page.get_by_role("cell", name="2")).to_be_visible()
    visitor.picture(page, "markdown")


def test_long_chats_and_long_answers_stay_usable(visitor: Visitor) -> None:
    page = visitor.open(import_chat(visitor.url, *["Some **words**."] * 500))
    expect(page.get_by_text("question 499", exact=True)).to_be_in_viewport()
    expect(answers(page)).to_have_count(500, timeout=60_000)  # the older ones follow
    expect(page.get_by_text("question 499", exact=True)).to_be_in_viewport()
    expect(composer(page)).to_be_enabled()
    paragraphs = "\n\n".join(f"Paragraph {n} with `code` and *words*." for n in range(2500))
    page = visitor.open(import_chat(visitor.url, paragraphs))
    expect(page.get_by_text("Paragraph 2499")).to_be_visible()
    composer(page).fill("still writing")
    expect(composer(page)).to_have_value("still writing")


def test_a_phone_shows_the_settings_over_the_chat(
    visit: Callable[..., Visitor], server: RunningServer, faults_of: Callable[[Page], list[str]]
) -> None:
    visitor = visit(server, size=PHONE)
    page = visitor.open()
    page.get_by_role("button", name="Settings of the chat").click()
    visitor.picture(page, "settings-phone")
    assert faults_of(page) == []
    page.get_by_role("button", name="Close the settings").click()
    expect(composer(page)).to_be_visible()
