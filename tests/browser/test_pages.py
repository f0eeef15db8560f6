"""The pages of requests, metrics and adapters, with real traffic behind them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.hub.catalogue import DEFAULT_MODEL
from tests.browser.conftest import COLOURS, SIZES, Visitor
from tests.e2e.conftest import RunningServer
from tests.support.checkpoints.lora_adapters import write_adapter

REQUESTS, METRICS, ADAPTERS = "/ui/requests", "/ui/metrics", "/ui/adapters"
PAGES = ("/ui/models", ADAPTERS, METRICS, REQUESTS, "/ui/api-examples")
CHAT = "/v1/chat/completions"
SMOLLM2 = DecoderSpec(
    architecture="llama",
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49_152,
    norm_eps=1e-5,
    rope=RopeSpec(100_000.0, 64),
    layers=(LayerSpec(),) * 30,
    max_model_len=8192,
)
"""The sizes of the default model."""


def ask(server: RunningServer, **fields: Any) -> httpx.Response:
    """Send a chat completion request."""
    body = {"messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 4, **fields}
    return httpx.post(server.url + CHAT, json=body, timeout=60)


def made_traffic(server: RunningServer) -> None:
    """Send streams, an answer, a failure and a request without a model."""
    for _ in range(3):
        assert ask(server, stream=True, max_tokens=8).status_code == 200
    assert ask(server).status_code == 200
    assert ask(server, model="absent").status_code == 404
    assert httpx.get(server.url + "/v1/models").status_code == 200


@pytest.fixture(scope="module")
def busy(server: RunningServer) -> RunningServer:
    """The server after some requests."""
    made_traffic(server)
    return server


@pytest.fixture(scope="module")
def mutable(
    default_model: Path, built_page: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, Path]]:
    """A server that lets clients load adapters, and the folder of an adapter."""
    folder = tmp_path_factory.mktemp("adapters") / "tone"
    write_adapter(folder, spec=SMOLLM2, rank=4, size=0.02, layers=range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVICE_ALLOW_RUNTIME_LORA_UPDATING", "1")
        running = RunningServer("--enable-lora", "--lora-max-bytes", "64MiB")
    yield running, folder
    running.stop()


def figure(page: Page, plot: str, name: str) -> str:
    """Return the figure beside a name in the legend of a plot."""
    entry = page.get_by_role("region", name=plot, exact=True).get_by_role("listitem")
    return entry.filter(has_text=name).locator("b").inner_text()


@SIZES
@COLOURS
def test_no_page_has_a_serious_fault(
    busy: RunningServer,
    visit: Callable[..., Visitor],
    faults_of: Callable[[Page], list[str]],
    size: tuple[int, int],
    colours: str,
) -> None:
    visitor = visit(busy, size=size, colours=colours)
    for path in PAGES:
        page = visitor.open(path)
        page.get_by_role("main").get_by_role("heading", level=2).or_(
            page.get_by_role("main").get_by_role("table")
        ).or_(page.get_by_text("No model takes adapters.")).first.wait_for()
        name = path.removeprefix("/ui/")
        visitor.picture(page, f"{name}-{size[0]}-{colours}")
        assert faults_of(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        page.close()


def test_requests_are_listed_with_their_figures(busy: RunningServer, visitor: Visitor) -> None:
    page = visitor.open(REQUESTS)
    row = page.get_by_role("row").filter(has_text=CHAT).filter(has_text=DEFAULT_MODEL).first
    expect(row.get_by_text("200", exact=True)).to_be_visible()
    expect(row.get_by_role("cell").last).to_have_text("4")
    failed = page.get_by_role("row").filter(has_text="404")
    expect(failed.get_by_role("rowheader")).to_have_text(re.compile(f"POST.*{CHAT}"))


def test_a_new_request_appears_by_itself(busy: RunningServer, visitor: Visitor) -> None:
    page = visitor.open(REQUESTS)
    rows = page.get_by_role("row").filter(has_text="/v1/embeddings")
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    before = rows.count()
    httpx.post(busy.url + "/v1/embeddings", json={"input": "text"})
    expect(rows).to_have_count(before + 1)
    expect(page.get_by_role("row").nth(1)).to_contain_text("/v1/embeddings")


def test_a_paused_list_stands_still_until_it_goes_on(busy: RunningServer, visitor: Visitor) -> None:
    page = visitor.open(REQUESTS)
    rows = page.get_by_role("row").filter(has_text="/v1/rerank")
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    before = rows.count()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused")).to_be_visible()
    httpx.post(busy.url + "/v1/rerank", json={"query": "q", "documents": ["d"]})
    with page.expect_response(re.compile("/ui/api/info")):  # a later answer than a refresh
        page.evaluate("dispatchEvent(new Event('online'))")
    expect(rows).to_have_count(before)
    page.get_by_role("button", name="Resume").click()
    expect(rows).to_have_count(before + 1)


def test_filters_narrow_the_list(busy: RunningServer, visitor: Visitor) -> None:
    page = visitor.open(REQUESTS)
    body = page.locator("tbody tr")
    expect(body.first).to_be_visible()
    page.get_by_label("Path").select_option("/v1/models")
    expect(body.first).to_contain_text("GET")
    assert all("/v1/models" in text for text in body.all_inner_texts())
    page.get_by_label("Status").select_option(label="Failed")
    page.get_by_role("button", name="Show all").click()
    page.get_by_label("Status").select_option(label="4xx")
    expect(body.filter(has_text="404").first).to_be_visible()
    expect(body.filter(has_text="200")).to_have_count(0)
    page.get_by_label("Model").select_option("unknown")
    expect(body.filter(has_text=DEFAULT_MODEL)).to_have_count(0)
    expect(body.first).to_contain_text("404")
    page.get_by_label("Path").select_option("/v1/models")
    expect(page.get_by_text("No request matches.")).to_be_visible()


def test_a_row_opens_the_details_by_keyboard(busy: RunningServer, visitor: Visitor) -> None:
    page = visitor.open(REQUESTS)
    given = "req-of-this-test"
    httpx.get(busy.url + "/v1/models", headers={"x-request-id": given})
    expect(page.get_by_role("row").nth(1)).to_contain_text("/v1/models")
    page.get_by_label("Path").select_option("/v1/models")
    page.get_by_role("row").nth(1).get_by_role("button").press("Enter")
    dialog = page.get_by_role("dialog", name="Request")
    expect(dialog.get_by_text(given)).to_be_visible()
    expect(dialog.get_by_text("Completed")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_the_list_goes_on_after_a_restart_of_the_server(
    start_server: Callable[..., RunningServer], built_page: None, visit: Callable[..., Visitor]
) -> None:
    first = start_server()
    port = first.url.rpartition(":")[2]
    visitor = visit(first)
    visitor.expect_errors("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")
    for _ in range(2):
        httpx.get(first.url + "/v1/models")
    page = visitor.open(REQUESTS)
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    first.stop()
    second = start_server("--port", port)
    httpx.get(second.url + "/v1/models")
    expect(rows).to_have_count(3, timeout=30_000)


def test_plots_show_the_traffic(busy: RunningServer, visitor: Visitor) -> None:
    page = visitor.open(METRICS)
    requests = page.get_by_role("region", name="HTTP requests per second")
    expect(requests.get_by_role("img")).to_have_accessible_name(re.compile(r"succeeded \d"))
    made_traffic(busy)
    streams = page.get_by_role("region", name="Time to first token")
    expect(streams.get_by_role("img")).to_have_accessible_name(re.compile(r"median \d+"))
    assert re.fullmatch(r"\d+ ms|\d+(\.\d)? s", figure(page, "Time between tokens", "p99"))
    assert page.locator("section path").first.get_attribute("d")
    total = float(re.findall(r"^service_tokens_generated_total (\S+)", metrics(busy), re.M)[0])
    assert total >= 3 * 8
    cache = page.get_by_role("region", name="Prefix cache")
    expect(cache).to_contain_text(re.compile(r"\d+ of \d+ prompts"))


def metrics(server: RunningServer) -> str:
    return httpx.get(server.url + "/metrics").text


def test_the_pointer_reads_an_earlier_moment(busy: RunningServer, visitor: Visitor) -> None:
    page = visitor.open(METRICS)
    plot = page.get_by_role("region", name="Sequences")
    expect(plot.get_by_role("img")).to_have_accessible_name(re.compile(r"running \d"))
    plot.get_by_role("img").hover()
    expect(plot.get_by_text(re.compile(r"^\d\d:\d\d:\d\d$"))).to_be_visible()


def test_a_hidden_page_reads_no_metrics(busy: RunningServer, visitor: Visitor) -> None:
    page = visitor.context.new_page()
    page.clock.install()
    page.goto(busy.url + METRICS)
    page.get_by_role("region", name="Sequences").wait_for()
    read: list[str] = []
    page.on("request", lambda request: read.append(request.url))
    page.clock.run_for(60_000)
    assert any(url.endswith("/metrics") for url in read)

    hide = "Object.defineProperty(document, 'visibilityState', { value: 'hidden', writable: true })"
    page.evaluate(f"{hide}; document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(20_000)
    read.clear()
    page.clock.run_for(120_000)
    assert read == []

    with page.expect_request("**/metrics"):
        page.evaluate(
            "document.visibilityState = 'visible';"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )


def test_disabled_metrics_are_explained(
    start_server: Callable[..., RunningServer], built_page: None, visit: Callable[..., Visitor]
) -> None:
    page = visit(start_server("--disable-metrics")).open(METRICS)
    expect(page.get_by_text("--disable-metrics")).to_be_visible()


def test_a_server_without_adapters_says_how_to_have_them(
    busy: RunningServer, visitor: Visitor
) -> None:
    page = visitor.open(ADAPTERS)
    expect(page.get_by_text("penstock serve MODEL --lora ALIAS=FOLDER_OR_HUB_ID")).to_be_visible()


def test_an_adapter_is_loaded_and_unloaded(
    mutable: tuple[RunningServer, Path], visit: Callable[..., Visitor]
) -> None:
    server, folder = mutable
    visitor = visit(server)
    page = visitor.open(ADAPTERS)
    model = page.get_by_role("region", name=DEFAULT_MODEL)
    expect(model.get_by_text("0 of 16")).to_be_visible()
    model.get_by_text("Load an adapter").click()
    model.get_by_role("textbox", name="Alias").fill("tone")
    model.get_by_label("Folder on the server").fill(str(folder))
    model.get_by_role("button", name="Load", exact=True).click()
    expect(model.get_by_text("1 of 16")).to_be_visible()
    entry = model.get_by_role("listitem").filter(has_text="tone")
    expect(entry).to_contain_text("rank 4")
    assert ask(server, adapter="tone").status_code == 200
    expect(entry.get_by_text("In memory")).to_be_visible(timeout=15_000)
    visitor.picture(page, "adapters-loaded")

    entry.get_by_role("button", name="Unload tone").click()
    page.get_by_role("dialog").get_by_role("button", name="Unload").click()
    expect(model.get_by_text("No adapter is loaded.")).to_be_visible()


def test_a_refused_adapter_names_its_field(
    mutable: tuple[RunningServer, Path], visit: Callable[..., Visitor]
) -> None:
    server, _ = mutable
    visitor = visit(server)
    visitor.expect_errors("404")
    page = visitor.open(ADAPTERS)
    page.get_by_text("Load an adapter").click()
    page.get_by_role("textbox", name="Alias").fill("tone")
    path = page.get_by_label("Folder on the server")
    path.fill("/no/such/folder")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(path).to_have_attribute("aria-invalid", "true")
