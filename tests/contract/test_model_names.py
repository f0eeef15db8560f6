"""Additional names of a model: `--served-model-name` on the command line and in the configuration
file, in cards, answers and metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from penstock.cli import main as cli
from penstock.cli import serve as serve_module
from penstock.config import ModelSettings, ServingSettings, SettingsError
from tests.support.servers.http_server import CREATED, MODEL, serving

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def test_each_name_has_a_card_and_metrics_use_the_id() -> None:
    async with serving(aliases={"gpt-4o": MODEL, "claude": MODEL}) as server:
        cards = (await server.http.get("/v1/models")).json()["data"]
        assert [card["id"] for card in cards] == ["default", MODEL, "gpt-4o", "claude"]
        assert [card["root"] for card in cards] == ["default", MODEL, MODEL, MODEL]
        assert all(card["created"] == CREATED for card in cards)
        one = (await server.http.get("/v1/models/claude")).json()
        assert one == cards[3]
        assert [card.id async for card in server.openai.models.list()][2] == "gpt-4o"
        answer = await server.http.post("/v1/chat/completions", json={**CHAT, "model": "gpt-4o"})
        assert answer.json()["model"] == "gpt-4o"
        text = (await server.http.get("/metrics")).text
        missing = await server.http.post("/v1/chat/completions", json={**CHAT, "model": "gpt-5"})
    assert f"Available models: {MODEL}, gpt-4o, claude." in missing.json()["error"]["message"]
    requests = [
        sample.labels["model"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "http_requests_total" and sample.labels["method"] == "POST"
    ]
    assert requests == [MODEL]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServingSettings]:
    """Return the models that `penstock serve` would serve."""
    calls: list[ServingSettings] = []
    monkeypatch.setattr(serve_module, "serve_settings", calls.append)
    return calls


def serve(served: list[ServingSettings], *words: str) -> ModelSettings:
    result = CliRunner().invoke(cli.app, ["serve", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (model,) = served[-1].models
    return model


@pytest.mark.parametrize(
    "words",
    [
        ("m.gguf", "--served-model-name", "a", "b"),
        ("--served-model-name", "a", "b", "--port", "0", "m.gguf"),
        ("--served-model-name", "a", "b", "m.gguf"),
        ("--served-model-name", "a", "--served-model-name=b", "m.gguf"),
        ("-m", "m.gguf", "--served-model-name", "a", "b", "a"),
    ],
)
def test_option_accepts_several_names(
    served: list[ServingSettings], words: tuple[str, ...]
) -> None:
    model = serve(served, *words)
    assert (model.engine.model, model.aliases) == ("m.gguf", ("a", "b"))


@pytest.mark.parametrize("names", ["'a'", "['a']"])
def test_configuration_file_sets_names(
    served: list[ServingSettings], tmp_path: Path, names: str
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f"model = 'm.gguf'\nserved_model_name = {names}\n")
    assert serve(served, "--config", str(file)).aliases == ("a",)
    assert serve(served, "--config", str(file), "--served-model-name", "b").aliases == ("b",)


def test_configuration_file_sets_names_of_several_models(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[[models]]\nmodel = 'm.gguf'\n")
    words = ["serve", "--config", str(file), "--served-model-name", "a"]
    with pytest.raises(SettingsError, match=r"served_model_name .* \[\[models\]\]; .* `aliases`"):
        CliRunner().invoke(cli.app, words, catch_exceptions=False)


def test_name_equal_to_the_id_is_listed_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.touch()
    settings = cli_settings(monkeypatch, str(path), "--served-model-name", "m", "other")
    (model,) = serve_module.with_ids(settings).models
    assert (model.id, model.aliases) == ("m", ("other",))


def cli_settings(monkeypatch: pytest.MonkeyPatch, *words: str) -> ServingSettings:
    calls: list[ServingSettings] = []
    monkeypatch.setattr(serve_module, "serve_settings", calls.append)
    serve(calls, *words)
    return calls[0]
