"""The shell of the web page: sidebar, pages, colours, menus, keyboard and accessibility."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import COLOURS, DESKTOP, PHONE, SIZES, Visitor
from tests.e2e.conftest import RunningServer

PAGES = {
    "Models": "/ui/models",
    "Adapters": "/ui/adapters",
    "Metrics": "/ui/metrics",
    "Requests": "/ui/requests",
    "API examples": "/ui/api-examples",
}


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def choose_dark(page: Page) -> str:
    """Choose the dark colours and return the background."""
    page.get_by_role("button", name="Colours").click()
    page.get_by_role("menuitemradio", name="Dark").click()
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    return background(page)


@SIZES
@COLOURS
def test_the_shell_has_no_serious_fault(
    visit: Callable[..., Visitor],
    server: RunningServer,
    faults_of: Callable[[Page], list[str]],
    size: tuple[int, int],
    colours: str,
) -> None:
    visitor = visit(server, size=size, colours=colours)
    page = visitor.open()
    visitor.picture(page, f"shell-{size[0]}-{colours}")
    assert faults_of(page) == []
    if size == PHONE:
        page.get_by_role("button", name="Show sidebar").click()
        visitor.picture(page, f"sidebar-{size[0]}-{colours}")
        assert faults_of(page) == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE, (360, 640)], ids=str)
def test_a_page_is_never_wider_than_the_screen(
    visit: Callable[..., Visitor], server: RunningServer, size: tuple[int, int]
) -> None:
    visitor = visit(server, size=size)
    for path in ("/ui/", *PAGES.values()):
        page = visitor.open(path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        page.close()


def test_links_of_the_sidebar_lead_to_the_pages(visitor: Visitor) -> None:
    page = visitor.open()
    for name, path in PAGES.items():
        page.get_by_role("link", name=name, exact=True).click()
        expect(page).to_have_url(visitor.url + path)
        expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
        expect(page).to_have_title(f"{name} · Penstock")
        expect(page.get_by_role("link", name=name, exact=True)).to_have_attribute(
            "aria-current", "page"
        )
    page.go_back()
    expect(page.get_by_role("heading", level=1, name="Requests")).to_be_visible()


@pytest.mark.parametrize(("name", "path"), PAGES.items())
def test_an_address_opens_its_page(visitor: Visitor, name: str, path: str) -> None:
    page = visitor.open(path)
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()


def test_an_unknown_address_leads_back_to_the_chat(visitor: Visitor) -> None:
    page = visitor.open("/ui/never/seen")
    page.get_by_role("link", name="Start a chat").click()
    expect(page).to_have_url(visitor.url + "/ui/")


def test_the_chosen_colours_outlast_a_reload_and_reach_other_tabs(visitor: Visitor) -> None:
    page, other = visitor.open(), visitor.open()
    page.bring_to_front()  # Chromium paints the tab in front only
    light = background(page)
    dark = choose_dark(page)
    assert dark != light
    other.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    page.reload()
    page.locator("#app main").wait_for()
    assert background(page) == dark


def test_the_chosen_colours_are_there_before_the_scripts_of_the_page(visitor: Visitor) -> None:
    page = visitor.open()
    dark = choose_dark(page)
    visitor.expect_errors("ERR_FAILED")
    page.route("**/assets/index-*.js", lambda route: route.abort())
    page.reload()
    assert page.locator("main").count() == 0
    assert background(page) == dark


def test_the_sidebar_hides_and_stays_hidden(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_role("button", name=re.compile("Hide sidebar")).click()
    expect(page.get_by_role("navigation")).to_have_count(0)
    page.reload()
    page.get_by_role("button", name="Show sidebar").click()
    expect(page.get_by_role("navigation")).to_be_visible()
    page.keyboard.press("Control+Shift+S")
    expect(page.get_by_role("navigation")).to_have_count(0)


def test_the_sidebar_of_a_phone_closes_by_itself(
    visit: Callable[..., Visitor], server: RunningServer
) -> None:
    page = visit(server, size=PHONE).open()
    ways: tuple[Callable[[], object], ...] = (
        lambda: page.keyboard.press("Escape"),
        lambda: page.mouse.click(PHONE[0] - 10, PHONE[1] / 2),
        lambda: page.get_by_role("link", name="Models").click(),
    )
    for close in ways:
        expect(page.get_by_role("navigation")).to_have_count(0)
        page.get_by_role("button", name="Show sidebar").click()
        expect(page.get_by_role("navigation")).to_be_visible()
        close()
    expect(page.get_by_role("heading", level=1, name="Models")).to_be_visible()
    expect(page.get_by_role("navigation")).to_have_count(0)


def test_the_sidebar_of_a_phone_takes_the_focus_and_gives_it_back(
    visit: Callable[..., Visitor], server: RunningServer
) -> None:
    page = visit(server, size=PHONE).open()
    page.get_by_role("button", name="Show sidebar").press("Enter")
    expect(page.get_by_role("link", name="Penstock")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Show sidebar")).to_be_focused()


def test_a_menu_works_by_keyboard(visitor: Visitor) -> None:
    page = visitor.open()
    button = page.get_by_role("button", name="Colours")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitemradio", name="As the system")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitemradio", name="Light")).to_be_focused()
    page.keyboard.press("d")
    expect(page.get_by_role("menuitemradio", name="Dark")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("menu")).to_have_count(0)
    expect(button).to_be_focused()


def test_shortcuts_are_explained_and_work(visitor: Visitor) -> None:
    page = visitor.open("/ui/models")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog.get_by_text("Ctrl+K")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("Control+k")
    expect(page.get_by_role("searchbox", name="Search chats")).to_be_focused()
    page.keyboard.press("Control+Shift+O")
    expect(page).to_have_url(visitor.url + "/ui/")


def test_the_keyboard_skips_the_sidebar(visitor: Visitor) -> None:
    page = visitor.open("/ui/models")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Skip to the page")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


def test_the_page_asks_for_nothing_beyond_its_policy(visitor: Visitor) -> None:
    policy = httpx.get(visitor.url + "/ui/").headers["content-security-policy"]
    assert "unsafe" not in policy
    page = visitor.open()
    visitor.expect_errors("Content Security Policy")
    ran = page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        " document.body.append(s); return window.ran === 1 }"
    )
    assert not ran
    assert any("Content Security Policy" in problem for problem in visitor.problems)


def test_a_large_screen_shows_the_sidebar_again(
    visit: Callable[..., Visitor], server: RunningServer
) -> None:
    page = visit(server, size=DESKTOP).open()
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    expect(page.get_by_role("navigation")).to_have_count(0)
    page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
    expect(page.get_by_role("navigation")).to_be_visible()


def test_the_page_survives_a_restart_of_the_server(
    visit: Callable[..., Visitor],
    start_server: Callable[..., RunningServer],
    built_page: None,
) -> None:
    first = start_server()
    port = first.url.rpartition(":")[2]
    visitor = visit(first)
    visitor.expect_errors("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")
    page = visitor.open()
    lost = page.get_by_text("The server does not answer.")
    first.stop()
    page.evaluate("dispatchEvent(new Event('online'))")  # instead of the next regular question
    expect(lost).to_be_visible()
    start_server("--port", port)
    expect(lost).to_have_count(0)
