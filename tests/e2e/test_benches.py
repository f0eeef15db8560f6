"""Each benchmark runs briefly and reports its figures, which are not judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import MODULES

ROOT = Path(__file__).parents[2]


def bench(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "bench", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_all_benches_are_listed() -> None:
    listed = bench("--help")
    assert all(name in listed for name in MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_lists_its_options(name: str) -> None:
    assert f"usage: bench {name}" in bench(name, "--help")


@pytest.mark.parametrize("option", ["--with", "--workloads"])
def test_an_unknown_name_lists_the_known_ones(option: str) -> None:
    command = [sys.executable, "-m", "bench", "server", option, "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"argument {option}: 'nothing' is not one of" in done.stderr


@pytest.mark.slow
def test_an_api_process_is_measured(default_model: Path) -> None:
    short = ("--seconds", "0.3", "--repeats", "1", "--rates", "20000")
    rows = json.loads(bench("api", "--model", default_model, *short))["rows"]
    assert rows["requests"]["cpu_us_per_request"] > 0
    assert rows["streams-20000"]["tokens_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("what", ["engine", "server"])
def test_decode_is_measured(what: str, default_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    short = ("--workloads", "decode-1", "--repeats", "1", "--out", out)
    assert "| decode-1, tok/s |" in bench(what, "--model", default_model, *short)
    assert json.loads(out.read_text())["machine"]["cores"] > 0


@pytest.mark.slow
def test_adapters_are_measured(default_model: Path) -> None:
    assert bench("lora", "--model", default_model, "--new", "8", "--repeats", "1")


@pytest.mark.slow
def test_divergence_is_measured(default_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text((ROOT / "README.md").read_text())
    assert json.loads(bench("quality", default_model, text, "--chunks", "1"))["perplexity"] > 1


@pytest.mark.slow
def test_first_masks_are_measured() -> None:
    assert json.loads(bench("constraints", "first-mask", "--count", "3"))
