"""`penstock tune` prints candidates, a command that serves, and a settings file that loads."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from penstock.cli import main as cli
from penstock.cli.main import app
from penstock.config.load_settings import load_engine
from penstock.tune.recommended_settings import settings_file
from penstock.tune.types import RecommendedSettings
from tests.support.checkpoints.small_llama import CONTEXT, write_small_llama
from tests.support.servers.server_process import serving_process, write_servable_model


def invoke(*words: str) -> Any:
    result = CliRunner().invoke(app, ["tune", *words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))


def settings_of(command: str) -> dict[str, Any]:
    """Return the settings that a `penstock serve` command gives."""
    program, name, *words = shlex.split(command)
    assert (program, name) == ("penstock", "serve")
    seen: dict[str, Any] = {}
    root = typer.main.get_command(app)
    context = root.commands["serve"].make_context("serve", list(words))  # type: ignore[attr-defined]
    with context:
        seen = {key: value for key, value in context.params.items() if value not in (None, ())}
    return seen


def test_the_table_the_command_and_the_file_agree(tmp_path: Path) -> None:
    model = write_small_llama(tmp_path / "small model")
    file = tmp_path / "penstock.toml"
    words = (str(model), "--max-model-len", "128", "--threads", "1", "--cpu", "--quantization")
    printed = invoke(*words, "int8", "--emit-config", str(file)).output
    assert "near-lossless" in printed and "int8" in printed and f"{CONTEXT}" in printed
    (command,) = [line.strip() for line in printed.splitlines() if " serve '" in line]
    asked = settings_of(command)
    loaded = load_engine({}, file=file)
    assert (loaded.model, loaded.device) == (asked["model"], asked["device"]) == (str(model), "cpu")
    for name in ("quantization", "max_model_len", "max_num_seqs"):
        assert getattr(loaded, name) == asked[name]
    assert int(asked["kv_cache_memory_mb"]) == loaded.kv_cache_memory_mb
    assert loaded.quantization == "int8" and loaded.max_model_len == 128


def test_json_is_the_result_of_the_route(tmp_path: Path) -> None:
    model = write_small_llama(tmp_path / "small")
    words = (str(model), "--json", "--profile", "quality", "--threads", "1", "--max-batch-size")
    found = json.loads(invoke(*words, "2").stdout)
    assert found["profile"] == "quality" and found["max_batch_size"] == 2
    assert [one["isq"] for one in found["candidates"]] == [None, "int8", "int4"]


def test_a_model_that_does_not_exist_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["penstock", "tune", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert "none" in str(ended.value.code)


def test_a_settings_file_is_valid_whatever_the_name_of_the_model(tmp_path: Path) -> None:
    name = 'a "quoted" name\\with\ttabs\x7f and é'
    settings = RecommendedSettings(model=name, quantization="int4", max_num_seqs=7)
    (tmp_path / "c.toml").write_text(settings_file(settings), encoding="utf-8")
    loaded = load_engine({}, file=tmp_path / "c.toml")
    assert (loaded.model, loaded.quantization, loaded.max_num_seqs) == (name, "int4", 7)
    assert loaded.kv_cache_dtype == "auto"


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["quality", "fast"])
def test_the_recommended_settings_start_a_server(tmp_path: Path, profile: str) -> None:
    model = write_servable_model(tmp_path / "small")
    file = tmp_path / "penstock.toml"
    printed = invoke(model, "--profile", profile, "--threads", "1", "--emit-config", str(file))
    (command,) = [line.strip() for line in printed.output.splitlines() if f" {model} --" in line]
    with serving_process(*shlex.split(command)[2:]) as server:
        server.wait_ready()
    with serving_process("--config", str(file)) as server:
        server.wait_ready()


def test_every_recommended_setting_is_one_of_the_engine() -> None:
    fields = {field.name for field in msgspec.structs.fields(RecommendedSettings)}
    assert fields <= set(load_engine({}, file=None).__struct_fields__)
