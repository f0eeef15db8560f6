"""The engine process before it has a model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("sent", [b"", b'{"settings": {"mod'])
def test_an_engine_whose_server_ends_before_it_sent_a_task_ends_quietly(
    sent: bytes, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "penstock.engine.processes.process",
        str(tmp_path / "engine.sock"),
    ]
    done = subprocess.run(command, input=sent, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"Traceback" not in done.stderr


def test_the_process_ends_without_freeing_objects_of_libraries() -> None:
    """Triton reports objects that are left when the interpreter ends."""
    script = """
import atexit, sys
from penstock.engine.processes.process import end_process

class Kept:
    def __del__(self):
        print("freed", file=sys.stderr)

kept = Kept()
atexit.register(print, "at exit")
print("before")
end_process(3)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "before\nat exit\n", "")
