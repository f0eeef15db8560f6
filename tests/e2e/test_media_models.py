"""Speech and image models side by side behind the real server, from one settings file."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import httpx
import pytest
from PIL import Image

from tests.e2e.conftest import RunningServer
from tests.support.speech.onnx_files import write_kokoro, write_piper

pytest.importorskip("diffusers")
pytest.importorskip("onnxruntime")
pytest.importorskip("phonemizer")

pytestmark = pytest.mark.slow

SETTINGS = """
[[models]]
id = "kokoro"
model = "{kokoro}"
threads = 1

[[models]]
id = "piper"
model = "{piper}"
threads = 1

[[models]]
id = "flux"
model = "{flux}"
threads = 1
device = "cpu"
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    from tests.support.images.tiny_pipelines import save_flux

    folder = tmp_path_factory.mktemp("models")
    for name in ("kokoro", "piper", "flux"):
        (folder / name).mkdir()
    settings = folder / "penstock.toml"
    settings.write_text(
        SETTINGS.format(
            kokoro=write_kokoro(folder / "kokoro"),
            piper=write_piper(folder / "piper"),
            flux=save_flux(folder / "flux"),
        )
    )
    server = RunningServer("--config", str(settings))
    try:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            yield client
    finally:
        server.stop()


def test_every_model_answers_its_own_requests(client: httpx.Client) -> None:
    for model, rate in (("kokoro", 24000), ("piper", 16000)):
        body = {"model": model, "input": "Hello there.", "response_format": "pcm"}
        speech = client.post("/v1/audio/speech", json=body)
        assert speech.status_code == 200 and len(speech.content) > rate // 10
        assert f"rate={rate};" in speech.headers["content-type"]
    body = {"model": "flux", "prompt": "a cat", "height": 32, "width": 48}
    made = client.post("/v1/images/generations", json=body)
    assert made.status_code == 200, made.text
    (entry,) = made.json()["data"]
    content = client.get(f"/v1/files/{entry['url']}/content").content
    assert Image.open(BytesIO(content)).size == (48, 32)


def test_requests_of_another_kind_are_refused_by_name(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}]
    for model, path, body in (
        ("kokoro", "/v1/chat/completions", {"messages": messages}),
        ("flux", "/v1/audio/speech", {"input": "hi"}),
        ("piper", "/v1/images/generations", {"prompt": "hi"}),
    ):
        answer = client.post(path, json={"model": model, **body})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "unsupported_model"


def test_models_and_metrics_name_them(client: httpx.Client) -> None:
    cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
    assert cards["kokoro"]["voices"][0] == "af_heart"
    assert cards["flux"]["status"] == "loaded" and "voices" not in cards["flux"]
    client.post("/v1/audio/speech", json={"model": "piper", "input": "Hello."})
    metrics = client.get("/metrics").text
    assert 'path="/v1/audio/speech"' in metrics and 'model="piper"' in metrics


def test_both_routes_are_in_the_api_explorer(client: httpx.Client) -> None:
    paths = client.get("/api-doc/openapi.json").json()["paths"]
    assert {"/v1/audio/speech", "/v1/images/generations"} <= paths.keys()
