"""Results of tests on a device are written while the tests run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TESTS = """
import os, signal
import pytest

def test_right(): pass

def test_wrong(): assert 1 + 1 == 3

@pytest.fixture
def lost(): raise LookupError("no device")

def test_without(lost): pass

def test_cut_off():
    if "CUT_OFF" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def outcomes(folder: Path, *arguments: str, **environment: str) -> list[dict[str, Any]]:
    (folder / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["-p", "bench.device.pytest_plugin", "--outcomes", str(folder), *arguments]
    path = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
    subprocess.run(
        [*command, str(folder / "test_some.py")],
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=folder,
        capture_output=True,
    )
    return [json.loads(line) for line in (folder / "results.jsonl").open()]


def last_name(line: dict[str, Any]) -> str:
    return str(line["name"]).rpartition("::")[2]


def test_failures_are_kept_with_their_reasons_and_all_are_counted(tmp_path: Path) -> None:
    wrong, lost, counts = outcomes(tmp_path)
    assert {line["section"] for line in (wrong, lost, counts)} == {"tests"}
    assert wrong["name"].endswith("::test_wrong") and "assert (1 + 1) == 3" in wrong["failed"]
    assert lost["name"].endswith("::test_without") and lost["when"] == "setup"
    assert "LookupError: no device" in lost["failed"]
    assert (counts["name"], counts["passed"], counts["failed"]) == ("tests", 2, 2)


@pytest.mark.slow
def test_results_are_kept_once_with_several_processes(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    found = outcomes(tmp_path, "-n", "2", "--dist", "worksteal")
    assert sorted(map(last_name, found)) == ["test_without", "test_wrong", "tests"]


def test_a_run_that_is_cut_off_keeps_its_results(tmp_path: Path) -> None:
    found = outcomes(tmp_path, CUT_OFF="1")
    assert list(map(last_name, found)) == ["test_wrong", "test_without"]
