"""The engines under measurement, each in processes of its own, and their CPU time."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

START_TIMEOUT_S: Final = 300.0


class Engine(Protocol):
    """An engine that answers chat requests one at a time."""

    name: str

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer the body of a chat request; return the body of the answer."""
        ...

    def cpu_s(self) -> float:
        """Return the user and system seconds of all its processes so far."""
        ...

    def stop(self) -> None:
        """End its processes."""
        ...


class HttpEngine:
    """A server with the chat API. Penstock keeps its data beside the log."""

    def __init__(self, name: str, command: str, port: int, log: Path) -> None:
        self.name = name
        self._port = port
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=os.environ | {"PENSTOCK_HOME": str(log.with_suffix(".home"))},
            )
        self._wait(log)

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """See Engine. Raises RuntimeError with the server's refusal."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise RuntimeError(f"{self.name}: status {response.status}: {text[:400]}")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def cpu_s(self) -> float:
        """See Engine."""
        return cpu_of_tree(self._process.pid)

    def stop(self) -> None:
        """See Engine."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self, log: Path) -> None:
        """Wait until the server is healthy. Raises RuntimeError if it ends or takes too long."""
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end and self._process.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"{self.name} did not start: {log.read_text()[-1000:]}")


class WorkerEngine:
    """A library in an interpreter of its own, which reads bodies and writes answers as JSON
    lines."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        with log.open("w") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self._log = log
        self._read()

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """See Engine. Raises RuntimeError if the library refuses or ends."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(body) + "\n")
        self._process.stdin.flush()
        return self._read()

    def cpu_s(self) -> float:
        """See Engine."""
        return cpu_of_tree(self._process.pid)

    def stop(self) -> None:
        """See Engine."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']} {self._log.read_text()[-1000:]}")
        return answer


def cpu_of_tree(pid: int) -> float:
    """Return the user and system seconds of a process and its descendants, ended ones too."""
    total = 0.0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
