"""The API examples of the page, each run against the server that shows them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from playwright.sync_api import Page, expect

from penstock.models.hub.catalogue import DEFAULT_MODEL
from tests.browser.conftest import Visitor
from tests.e2e.conftest import RunningServer
from tests.support.speech.onnx_files import write_piper

pytest.importorskip("anthropic")
pytest.importorskip("openai")
pytest.importorskip("diffusers")
pytest.importorskip("onnxruntime")
pytest.importorskip("phonemizer")

EXAMPLES: Final = "/ui/api-examples"
CLIENTS: Final = {
    "curl": "curl",
    "openai": "Python, openai",
    "anthropic": "Python, anthropic",
    "javascript": "JavaScript",
}
PROGRAMS: Final = {
    "curl": ("bash", ".sh"),
    "openai": (sys.executable, ".py"),
    "anthropic": (sys.executable, ".py"),
    "javascript": (shutil.which("node") or "node", ".mjs"),
}
TEXT: Final = ("chat", "streaming", "tools", "json", "image")
OTHERS: Final = ("transcription", "embeddings", "rerank", "speech", "picture")
SHOWN: Final = {
    "curl": (*TEXT, *OTHERS),
    "openai": (*TEXT, *OTHERS),
    "anthropic": TEXT,
    "javascript": (*TEXT, *OTHERS),
}
CHAT: Final = {
    "system": "Answer in few words; don't write $HOME or `id`.",
    "temperature": 0,
    "max_tokens": 60,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.3,
    "seed": 7,
    "stop": ["\n\n\n\n", "<end>"],
}
SETTINGS: Final = """
[[models]]
model = "{default}"
id = "{id}"

[[models]]
id = "sees"
model = "{folder}/sees"

[[models]]
id = "hears"
model = "{folder}/hears"

[[models]]
id = "embeds"
model = "{folder}/embeds"

[[models]]
id = "ranks"
model = "{folder}/ranks"

[[models]]
id = "speaks"
model = "{piper}"

[[models]]
id = "draws"
model = "{folder}/draws"
device = "cpu"
"""


@dataclass(frozen=True)
class Shown:
    """The examples that the page shows. `codes`: (client, example) -> program."""

    url: str
    codes: dict[tuple[str, str], str]


@pytest.fixture(scope="module")
def all_kinds(
    default_model: Path, built_page: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server with the default model, and with a small model of each other kind."""
    from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body
    from tests.support.checkpoints.reranker_checkpoints import save_reranker, small_reranker
    from tests.support.checkpoints.small_qwen2_vl import write_small_qwen2_vl
    from tests.support.images.tiny_pipelines import save_flux
    from tests.support.speech.whisper_folders import random_whisper

    folder = tmp_path_factory.mktemp("kinds")
    for name in ("hears", "draws", "piper"):
        (folder / name).mkdir()
    write_small_qwen2_vl(folder / "sees")
    random_whisper(folder / "hears")
    save_sentence_folder(folder / "embeds", small_body("Bert"))
    save_reranker(folder / "ranks", small_reranker("Bert"))
    save_flux(folder / "draws", factor=8)
    settings = folder / "penstock.toml"
    text = SETTINGS.format(
        default=default_model,
        id=DEFAULT_MODEL,
        folder=folder,
        piper=write_piper(folder / "piper"),
    )
    settings.write_text(text)
    running = RunningServer("--config", str(settings), "--threads", "1")
    yield running
    running.stop()


def read_examples(page: Page, client: str) -> dict[str, str]:
    """Return the programs for a client."""
    page.get_by_text(CLIENTS[client], exact=True).click()
    expect(page.get_by_role("radio", name=CLIENTS[client])).to_be_checked()
    sections = page.locator("[data-example]").all()
    return {
        str(section.get_attribute("data-example")): section.locator("pre").inner_text()
        for section in sections
    }


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the examples read."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("examples")
    Image.new("RGB", (56, 56), "steelblue").save(folder / "photo.jpg")
    with wave.open(str(folder / "speech.wav"), "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(16_000)
        recording.writeframes(bytes(2 * 16_000))
    return folder


@pytest.fixture
def shown(all_kinds: RunningServer, visit: Callable[..., Visitor]) -> Shown:
    """The examples for the settings of a chat, reached from that chat."""
    made = httpx.post(f"{all_kinds.url}/ui/api/chats", json={"title": "Rivers", "settings": CHAT})
    visitor = visit(all_kinds)
    page = visitor.open(f"/ui/chats/{made.json()['id']}")
    page.get_by_role("link", name="API examples").click()
    expect(page.get_by_label("Settings of")).to_have_value(made.json()["id"])
    expect(page.locator("[data-example='chat'] pre")).to_contain_text("few words")
    codes = {
        (client, name): code
        for client in CLIENTS
        for name, code in read_examples(page, client).items()
    }
    visitor.picture(page, "api-examples-all")
    return Shown(all_kinds.url, codes)


def run(code: str, client: str, name: str, folder: Path) -> str:
    """Run a program in a folder and return its output."""
    program, suffix = PROGRAMS[client]
    file = folder / f"example_{name}_{client}{suffix}"
    file.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [program, file.name], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{client} {name}:\n{code}\n{done.stderr}"
    return done.stdout


def answer_of(output: str, client: str) -> Any:
    """Return the JSON of curl's output."""
    assert client == "curl"
    body = json.loads(output)
    assert "error" not in body, output
    return body


def check(name: str, client: str, output: str, folder: Path) -> None:
    """Raise AssertionError if the output of an example is not that of a success."""
    if name == "speech":
        assert (folder / "speech.wav").read_bytes().startswith(b"RIFF")
    elif name == "picture":
        assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    elif client == "curl" and name == "streaming":
        assert output.rstrip().endswith("data: [DONE]") and '"error"' not in output
    elif client == "curl":
        body = answer_of(output, client)
        if name in ("chat", "image", "transcription", "json", "tools"):
            assert body["choices"][0]["message"]["role"] == "assistant"
        if name == "tools":
            assert body["choices"][0]["message"]["tool_calls"]
        if name == "json":
            assert json.loads(body["choices"][0]["message"]["content"]).keys() == {
                "name",
                "length_km",
            }
    elif name == "tools":
        assert "get_weather" in output
    elif name == "json":
        assert "name" in output and "length_km" in output
    elif name not in ("image", "transcription"):  # models with random weights may say nothing
        assert output.strip()


def test_every_example_runs(shown: Shown, workplace: Path) -> None:
    names = {client: tuple(n for c, n in shown.codes if c == client) for client in CLIENTS}
    assert names == SHOWN
    recording = (workplace / "speech.wav").read_bytes()
    for (client, name), code in shown.codes.items():
        (workplace / "speech.wav").write_bytes(recording)
        (workplace / "picture.png").unlink(missing_ok=True)
        output = run(code, client, name, workplace)
        check(name, client, output, workplace)


def test_settings_reach_the_examples(shown: Shown) -> None:
    for client in CLIENTS:
        code = shown.codes[client, "chat"]
        for text in ("top_k", "repetition_penalty", "seed", "<end>", "min_p"):
            assert text in code, (client, text)


def test_an_example_is_copied(all_kinds: RunningServer, visit: Callable[..., Visitor]) -> None:
    visitor = visit(all_kinds, permissions=["clipboard-read", "clipboard-write"])
    page = visitor.open(EXAMPLES)
    section = page.locator("[data-example='embeddings']")
    code = section.locator("pre").inner_text()
    section.get_by_role("button", name="Copy code").click()
    expect(section.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").strip() == code.strip()


def test_the_choice_of_a_client_outlasts_a_reload(
    all_kinds: RunningServer, visit: Callable[..., Visitor]
) -> None:
    page = visit(all_kinds).open(EXAMPLES)
    page.get_by_text("JavaScript", exact=True).click()
    expect(page.locator("[data-example='chat'] pre")).to_contain_text("await fetch")
    page.reload()
    expect(page.locator("[data-example='chat'] pre")).to_contain_text("await fetch")
