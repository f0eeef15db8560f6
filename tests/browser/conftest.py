"""The web page in a real browser, before the real server with the real default model.

A test fails if the page writes an error to the console, throws, or asks another host for
anything. `pytest --screenshots FOLDER tests/browser` keeps the pictures that the tests take.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from tests.browser.threaded import Served
from tests.e2e.conftest import RunningServer, default_model, start_server

pytest.importorskip("playwright", reason="needs the Python package playwright")
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)

__all__ = ["default_model", "start_server"]

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = (sys.executable, str(ROOT / "packaging/build_page.py"))
AXE: Final = ROOT / "python/penstock/api/ui/web/node_modules/axe-core/axe.min.js"
# Chromium of Debian, and the names of others.
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
# Chromium's own sandbox needs rights that containers lack; --no-sandbox is for tests only.
OPTIONS: Final = ("--no-sandbox", "--use-fake-device-for-media-stream")
TIMEOUT_MS: Final = 15_000
expect.set_options(timeout=TIMEOUT_MS)

Colours = Literal["light", "dark"]
DESKTOP: Final = (1280, 800)
PHONE: Final = (390, 844)
SIZES: Final = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
COLOURS: Final = pytest.mark.parametrize("colours", ["light", "dark"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)


@dataclass
class Visitor:
    """A browser profile before one server, and the problems that its pages met.

    `expected`: patterns of console errors that the test itself causes.
    """

    context: BrowserContext
    url: str
    pictures: Path | None
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def open(self, path: str = "/ui/") -> Page:
        """Open a page in a new tab and wait until the server's answer is shown."""
        page = self.context.new_page()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"thrown: {error}"))
        page.on("request", self._request)
        page.goto(self.url + path)
        page.locator("#app main").wait_for()
        return page

    def picture(self, page: Page, name: str) -> None:
        """Keep a picture of the page, if a folder was given."""
        if self.pictures is not None:
            page.screenshot(path=self.pictures / f"{name}.png")

    def expect_errors(self, *patterns: str) -> None:
        """Allow console errors that match one of the patterns, because the test causes them."""
        self.expected += patterns

    def check(self) -> None:
        """Raise AssertionError if a page met a problem that the test did not expect."""
        wrong = [
            problem
            for problem in self.problems
            if not any(re.search(pattern, problem) for pattern in self.expected)
        ]
        assert not wrong, "\n".join(wrong)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            place = message.location.get("url", "")
            self.problems.append(f"console {message.type}: {message.text} ({place})")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.problems.append(f"request to another host: {request.url}")


@pytest.fixture(scope="session")
def built_page() -> None:
    """Build the page if its sources changed."""
    done = subprocess.run([*BUILD, "--required"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def axe_source(built_page: None) -> str:
    """Return the script of axe-core, which finds faults that keep people from using a page."""
    if not AXE.exists():
        subprocess.run([*BUILD, "npm", "--version"], check=True, capture_output=True)
    return AXE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium. Its scope is a module, because no event loop may run while Playwright does."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        assert "CI" not in os.environ, "CI must have Chromium"
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=OPTIONS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def server(default_model: Path, built_page: None) -> Iterator[RunningServer]:
    running = RunningServer("--temperature", "0")
    yield running
    running.stop()


@pytest.fixture
def visit(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Visitor]]:
    """Return a function that makes visitors of a server. Their problems fail the test."""
    visitors: list[Visitor] = []
    folder = request.config.getoption("--screenshots")

    def make(
        server: RunningServer | Served,
        size: tuple[int, int] = DESKTOP,
        colours: Colours = "light",
        **options: Any,
    ) -> Visitor:
        width, height = size
        phone = width < 768
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=colours,
            has_touch=phone,
            is_mobile=phone,
            reduced_motion="reduce",
            locale="en-GB",
            **options,
        )
        context.set_default_timeout(TIMEOUT_MS)
        pictures = None if folder is None else Path(folder)
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
        visitors.append(Visitor(context, server.url, pictures))
        if isinstance(server, Served):
            server.before_stop.append(context.close)
        return visitors[-1]

    yield make
    for visitor in visitors:
        visitor.context.close()
    for visitor in visitors:
        visitor.check()


@pytest.fixture
def visitor(visit: Callable[..., Visitor], server: RunningServer) -> Visitor:
    """A visitor with a wide, light screen."""
    return visit(server)


@pytest.fixture
def faults_of(axe_source: str) -> Callable[[Page], list[str]]:
    """Return a function that lists the serious faults of a page for people with disabilities, with
    the elements that have them (axe-core, WCAG 2.2 AA and best practices)."""

    def faults(page: Page) -> list[str]:
        page.evaluate(axe_source)
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        return [
            f"{fault['id']} ({fault['impact']}): {fault['help']}: "
            + json.dumps([node["html"][:200] for node in fault["nodes"]])
            for fault in found["violations"]
            if fault["impact"] in ("serious", "critical", "moderate")
        ]

    return faults
