"""The device script, rehearsed on a CPU: each section runs and writes its results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_GPU = re.compile(r"^ *pytest\.mark\.gpu,$", re.MULTILINE)
# Our dependencies and test tools that a machine with a GPU need not have.
ABSENT = (
    *("orjson", "zmq", "starlette", "uvicorn", "httptools", "python_multipart", "sqlalchemy"),
    *("psycopg", "openapi_ui_bundles", "trustme", "openai", "anthropic", "jsonschema", "gguf"),
    *("schemathesis", "pytest_asyncio", "pytest_benchmark"),
)


def environment(out: Path) -> dict[str, str]:
    """Return the environment of a machine that has torch but none of the server's dependencies."""
    site = out / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({ABSENT!r}))\n"
    )
    path = os.pathsep.join([str(site), *(path for path in sys.path if path)])
    kept = out / "tmp"  # sections of one machine share checkpoints
    kept.mkdir()
    own = {"OUT": str(out), "PYTHON": sys.executable, "PYTHONPATH": path, "TMPDIR": str(kept)}
    return {**os.environ, **own}


def run(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "bench" / "device" / "run.sh"), *arguments]
    return subprocess.run(command, env=environment(out), capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a minute alone, several beside other work
def test_every_section_rehearses(tmp_path: Path) -> None:
    models = ["qwen3-0.6b", "qwen3-8b-fp8", "qwen3-30b-a3b"]
    sections = ["limits", "check", "ops", "products", *models, "profile", "invariance"]
    sections += ["adapters", "experts", "peers", "counters", "variants"]
    done = run(tmp_path, "--rehearse", "build", *sections)
    assert done.returncode == 0, done.stdout[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").open()]
    assert {line["section"] for line in lines} == set(sections)
    assert not [line for line in lines if "failed" in line]
    decodes = [line for line in lines if str(line.get("name")).startswith("decode 4")]
    assert decodes and all(line["ms"] > 0 for line in decodes)
    table = json.loads((tmp_path / "linear.json").read_text())
    # Products of a layer and the head; those of experts. The committed tables of GPUs are kept.
    rehearsed = {name: len(sizes) for name, sizes in table.items() if name.startswith("0")}
    assert rehearsed == {
        "0": 5,
        "0-float8": 4,
        "0-float8-experts": 2,
    }


@pytest.mark.slow
def test_the_server_rehearses_under_load(tmp_path: Path) -> None:
    """A separate test: this section needs dependencies that the others do without."""
    command = [sys.executable, "-m", "bench.device", "server", "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").open()]
    loads = [line for line in lines if str(line.get("name")).startswith("server ")]
    assert [line["requests"] for line in loads] == [4, 12]
    assert all(line["out_tok_s"] > 0 for line in loads)


def test_a_failed_section_is_named_and_the_others_run(tmp_path: Path) -> None:
    """Without a GPU, sections that are not rehearsed fail."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU")
    done = run(tmp_path, "limits", "experts")
    assert done.returncode == 1
    assert "#### limits: failed (1)" in done.stdout
    assert "not well: limits experts" in done.stdout
    kept = [json.loads(line) for line in (tmp_path / "results.jsonl").open()]
    assert [line["section"] for line in kept] == ["limits", "experts"]
    assert all("Traceback" in line["note"] for line in kept)


def test_an_unknown_section_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "no-such")
    assert done.returncode == 2
    assert "no section no-such" in done.stderr


@pytest.mark.slow
def test_gpu_tests_are_collected_without_server_dependencies(tmp_path: Path) -> None:
    patterns = ("tests/*/test_gpu_*.py", "tests/*/gpu/test_gpu_*.py")  # those of run.sh
    files = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    marked = [path for path in ROOT.glob("tests/**/test_*.py") if _GPU.search(path.read_text())]
    assert marked and set(marked) <= set(files)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "gpu"),
            *("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:benchmark"),
            *("-o", "addopts=", *map(str, files)),
        ],
        env={**environment(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for path in marked:
        assert path.name in done.stdout


def test_every_section_has_a_limit_of_eight_minutes() -> None:
    script = (ROOT / "bench" / "device" / "run.sh").read_text()
    limits = [int(limit) for limit in re.findall(r"(?:bench|run) \S+ (\d+)\b", script)]
    assert len(limits) == 9 and "timeout -k 10" in script
    assert max(limits) + 10 <= 8 * 60
