"""The servers to measure: ours and the peers, each started by its own command."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from bench.harness.load_client import Client, Refused, Trace
from bench.harness.machine_facts import memory_mib

START_TIMEOUT_S = 600.0


class Target(Protocol):
    """A server or library that answers bursts."""

    name: str
    startup_s: float

    def start(self) -> None: ...
    def burst(self, prompts: list[list[int]], new: int) -> list[Trace]: ...
    def memory_mib(self) -> int: ...
    def stop(self) -> None: ...


class HttpTarget:
    """A server with OpenAI's completions API over HTTP."""

    def __init__(
        self,
        name: str,
        command: str,
        base_url: str,
        model: str = "default",
        extra: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.startup_s = 0.0
        self._command = shlex.split(command)
        self._client = Client(base_url, model, extra)
        self._env = os.environ | (env or {})
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait for its first answer."""
        began = time.perf_counter()
        with Path(f"/tmp/bench-{self.name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._env, stdin=subprocess.DEVNULL
            )
        while True:
            try:
                self.burst([[2000, 2001, 2002]], 1)
                break
            except (OSError, Refused, asyncio.IncompleteReadError, ValueError):
                if self._process.poll() is not None:
                    raise RuntimeError(f"{self.name} did not start") from None
                if time.perf_counter() - began > START_TIMEOUT_S:
                    raise
                time.sleep(0.02)
        self.startup_s = time.perf_counter() - began

    def burst(self, prompts: list[list[int]], new: int) -> list[Trace]:
        return asyncio.run(self._client.burst(prompts, new))

    def beside(
        self, prompts: list[list[int]], new: int, arriving: list[list[int]], rate_per_s: float
    ) -> tuple[list[Trace], list[Trace]]:
        """Run streams and prompts that arrive beside them; return the traces of both."""
        return asyncio.run(self._client.beside(prompts, new, arriving, rate_per_s))

    def memory_mib(self) -> int:
        assert self._process is not None
        return memory_mib(self._process.pid)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def ours(
    model: str,
    port: int,
    options: str = "",
    python: str = sys.executable,
    path: str | None = None,
) -> HttpTarget:
    """Make `penstock serve` of the interpreter `python`. `path`: its PYTHONPATH, or None for that
    of this process."""
    command = (
        f"{python} -m penstock.cli.main serve {model} --host 127.0.0.1 --port {port} {options}"
    )
    env = None if path is None else {"PYTHONPATH": path}
    return HttpTarget("penstock", command, f"http://127.0.0.1:{port}/v1", env=env)


class WorkerTarget:
    """A library without a server: a script in its own interpreter that reads bursts as JSON
    lines."""

    def __init__(self, name: str, command: str) -> None:
        self.name = name
        self.startup_s = 0.0
        self._command = shlex.split(command)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        began = time.perf_counter()
        with Path(f"/tmp/bench-{self.name}.log").open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.burst([[2000, 2001, 2002]], 1)
        self.startup_s = time.perf_counter() - began

    def burst(self, prompts: list[list[int]], new: int) -> list[Trace]:
        assert self._process is not None and self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended")
        return [Trace(0.0, tuple(times)) for times in json.loads(line)]

    def memory_mib(self) -> int:
        assert self._process is not None
        return memory_mib(self._process.pid)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
