"""The real server with the real default model, started as a user would start it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

COMMAND = (sys.executable, "-m", "penstock.cli.main")
READY = re.compile(r"ready on (http://\S+)")


class RunningServer:
    """A `penstock serve` process. `lines`: its output so far. It has its own store unless the
    options name one."""

    def __init__(self, *options: str) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="penstock-e2e-")
        place = self._home.name
        own = ("--store", f"sqlite:///{place}/penstock.db", "--blobs", f"{place}/blobs")
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--host", "127.0.0.1", "--port", "0", *own, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        if not self._ready.wait(240) or not self.url:
            self.process.kill()
            raise AssertionError("the server did not get ready:\n" + "".join(self.lines))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if (match := READY.search(line)) is not None:
                self.url = match.group(1)
                self._ready.set()
        self._ready.set()

    @property
    def engine_pid(self) -> int:
        """Pid of the engine process."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        (engine,) = [
            c for c in children if "penstock.engine.processes.process" in " ".join(c.cmdline())
        ]
        return engine.pid

    def stop(self) -> int:
        """Send SIGTERM, wait for the end and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        self._home.cleanup()
        return status


@pytest.fixture(scope="session")
def default_model() -> Path:
    """Return the default model's file, downloaded once into the usual place."""
    command = [*COMMAND, "pull", "smollm2-135m-instruct"]
    subprocess.run(command, check=True, timeout=300, env=os.environ | {"NO_COLOR": "1"})
    from penstock.config import read_environment
    from penstock.models.hub.sources import resolve_model

    return resolve_model("smollm2-135m-instruct", read_environment().home).path


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    running = RunningServer()
    yield running
    running.stop()


@pytest.fixture
def start_server(default_model: Path) -> Iterator[Callable[..., RunningServer]]:
    """Return a function that starts further servers with their own options; all are stopped after
    the test."""
    started: list[RunningServer] = []

    def start(*options: str) -> RunningServer:
        started.append(RunningServer(*options))
        return started[-1]

    yield start
    for running in started:
        running.stop()
