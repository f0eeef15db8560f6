"""The texts of a ready server."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.api.routes import page as page_routes
from penstock.api.serving.ready import Ready
from penstock.cli.ready_screen import ready_json, ready_line, ready_screen
from penstock.config import EngineSettings, ModelSettings, ServerSettings, ServingSettings
from penstock.engine.types import EngineInfo

INFO = EngineInfo("small", 8192, 100, 4, 2048, 16, 2**20, "f", memory_bytes=2**30)
URL = "http://127.0.0.1:1234"


def ready(*models: tuple[str, EngineInfo | None], listening: str = "", **server: bool) -> Ready:
    settings = ServingSettings(
        tuple(
            ModelSettings(id=name, engine=EngineSettings(threads=1), on_demand=info is None)
            for name, info in models
        ),
        models[0][0],
        server=ServerSettings(**server),
    )
    return Ready(settings, URL, listening, dict(models))


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A built web page."""
    (tmp_path / "index.html").write_text("")
    monkeypatch.setattr(page_routes, "BUILT", tmp_path)


def test_the_screen_has_addresses_examples_and_the_way_to_stop(built):
    lines = ready_screen(ready(("small", INFO))).splitlines()
    assert lines[0].endswith(f"ready on {URL}")
    assert f"  Web page  {URL}/ui/" in lines and f"  API       {URL}/v1 (explorer: /docs)" in lines
    assert "  Model     small, context 8,192 tokens" in lines
    assert (
        "  Memory    1.0 GiB, of which weights 1.0 MiB; the KV cache holds 32,768 tokens" in lines
    )
    assert f"  curl {URL}/v1/chat/completions \\" in lines
    assert any(f'base_url="{URL}/v1"' in line for line in lines)
    assert lines[-1].startswith("Ctrl-C stops the server")
    assert len(lines) < 16 and max(map(len, lines)) <= 80


def test_the_body_of_the_example_is_json():
    for kind in ({}, {"embedding_width": 8}, {"sample_rate": 24000}, {"image_multiple": 16}):
        shown = ready_screen(ready(("small", msgspec.structs.replace(INFO, **kind))))
        json.loads(shown.partition("-d '")[2].partition("'")[0])
    assert "/v1/images/generations" in shown


def test_the_screen_says_why_there_is_no_page(tmp_path, monkeypatch, built):
    assert "none: it is off (--no-ui)" in ready_screen(ready(("small", INFO), no_ui=True))
    monkeypatch.setattr(page_routes, "BUILT", tmp_path / "nowhere")
    assert "none: it is not built; `make ui`" in ready_screen(ready(("small", INFO)))


def test_the_screen_says_that_others_can_reach_the_server():
    assert "--host 127.0.0.1" not in ready_screen(ready(("small", INFO)))
    open_to_all = ready(("small", INFO), listening="listening on 0.0.0.0:1234, ")
    assert "--host 127.0.0.1" in ready_screen(open_to_all)


def test_several_models_are_listed():
    several = ready(("small", INFO), ("later", None))
    shown = ready_screen(several)
    assert "small, context 8,192" in shown and "later, loaded by its first request" in shown
    assert ready_line(several).endswith("(models small, later on demand, 1 core)")


def test_the_json_is_one_line_with_the_ready_line(built):
    text = ready_json(ready(("small", INFO), ("later", None)))
    said = json.loads(text)
    assert "\n" not in text and f"ready on {URL} " in said["ready"]
    assert (said["url"], said["page"], said["page_note"]) == (URL, f"{URL}/ui/", None)
    assert [(m["id"], m["loaded"]) for m in said["models"]] == [("small", True), ("later", False)]
