"""The server under test: its processes, its folders, and its resources."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.lora import write_adapter
from bench.soak import processes
from penstock.config import read_environment
from penstock.models.families.registry import spec_of_gguf
from penstock.models.hub.sources import resolve_model
from penstock.quant.gguf.gguf_file import GgufFile

START_TIMEOUT_S = 120.0
READY = re.compile(r"ready on http://[^:]+:(\d+)")
# The cache is small, so that it is full soon: rows are preempted, and all of its memory is used.
SETTINGS = """\
default_model_id = "text"
[server]
host = "127.0.0.1"
port = 0
workers = {workers}
stall_timeout_s = 5.0
access_log_format = "json"
access_log_health = true
[store]
url = "sqlite:///{store}/penstock.db"
blobs = "{store}/blobs"
[[models]]
model = "{model}"
id = "text"
kv_cache_memory_mb = 96
[models.adapter]
enable_lora = true
lora_max_adapters = 4
lora_max_rank = 8
[[models]]
model = "{embedder}"
id = "embedding"
"""


@dataclass(frozen=True)
class ServerResources:
    """Resources of the server at one moment.

    `processes`, and the most `fds` and `threads` of one process: by role. `gauges`: of /metrics, by
    name. `leases`: of adapters. `busy`: sessions leased by a running request. `unfinished`: ids of
    responses.
    """

    api_rss_mib: float
    processes: dict[str, int]
    fds: dict[str, int]
    threads: dict[str, int]
    temporary: tuple[str, ...]
    gauges: dict[str, float]
    leases: int
    retired: int
    busy: int
    unfinished: tuple[str, ...]


class SoakedServer:
    """`penstock serve` with a text model, its adapters and an embedding model, in its own folder.
    `store`: the folder of its database and files, if that is another one."""

    def __init__(
        self, place: Path, model: str, embedder: str, workers: int = 1, store: Path | None = None
    ) -> None:
        self.place = place
        self.store = store or place
        self.workers = workers
        self._settings = SETTINGS.format(
            store=self.store, model=model, embedder=embedder, workers=workers
        )
        self._model = model
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: set[int] = set()

    @property
    def database(self) -> Path:
        return self.store / "penstock.db"

    @property
    def log(self) -> Path:
        return self.place / "log"

    def __enter__(self) -> SoakedServer:
        path = resolve_model(self._model, read_environment().home).path
        spec, _ = spec_of_gguf(GgufFile(path))
        for seed in (0, 1):
            write_adapter(self.place / "adapters" / str(seed), spec, seed, rank=4)
        (self.place / "tmp").mkdir()
        (self.place / "settings.toml").write_text(self._settings)
        command = [sys.executable, "-m", "penstock.cli.main", "serve"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--config", str(self.place / "settings.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ
                | {
                    "TMPDIR": str(self.place / "tmp"),
                    "SERVICE_ALLOW_RUNTIME_LORA_UPDATING": "1",
                    "SERVICE_LORA_ADAPTER_ROOT": str(self.place / "adapters"),
                },
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while (found := READY.search(self.log.read_text(errors="replace"))) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise RuntimeError(self.log.read_text(errors="replace"))
            time.sleep(0.1)
        self.port = int(found[1])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send SIGTERM, and wait for it to drain."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def status(self) -> int | None:
        """Exit status of the process; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    @property
    def roles(self) -> dict[int, str]:
        """The role of each of its processes."""
        assert self._process is not None
        found = processes.roles(self._process.pid)
        self._seen.update(found)
        return found

    def pids(self, role: str) -> list[int]:
        """Return its processes with this role."""
        return [pid for pid, found in self.roles.items() if found == role]

    def left_behind(self) -> list[str]:
        """Return the processes and files that a server left behind after its end."""
        alive = [pid for pid in self._seen if processes.is_alive(pid)]
        files = os.listdir(self.place / "tmp")
        return [f"process {pid}" for pid in alive] + [f"temporary file {name}" for name in files]

    def memory(self) -> tuple[float, dict[int, float]]:
        """Return resident MiB of the largest API process, and of each engine."""
        found = {pid: processes.rss_mib(pid) for pid in self.roles}
        engines = self.pids("engine")
        api = self.pids("worker") or self.pids("parent")
        return max((found.get(pid, 0.0) for pid in api), default=0.0), {
            pid: found.get(pid, 0.0) for pid in engines
        }

    def resources(self) -> ServerResources:
        """Return all resources. Raises OSError while the server does not answer."""
        of = self.roles
        adapters = json.loads(self.get("/v1/lora_adapters?model=text"))
        busy, unfinished = self._unfinished()
        return ServerResources(
            api_rss_mib=self.memory()[0],
            processes={role: list(of.values()).count(role) for role in of.values()},
            fds=processes.most(of, "fd"),
            threads=processes.most(of, "task"),
            temporary=tuple(sorted(os.listdir(self.place / "tmp"))),
            gauges=gauges(self.get("/metrics").decode()),
            leases=sum(generation["active_leases"] for generation in adapters["generations"]),
            retired=adapters["retired_generations"],
            busy=busy,
            unfinished=unfinished,
        )

    def _unfinished(self) -> tuple[int, tuple[str, ...]]:
        """Return (number of leased sessions, ids of unfinished responses), from the database."""
        with contextlib.closing(sqlite3.connect(self.database, timeout=10)) as database:
            leased = "select count(*) from sessions where lease_until > strftime('%s', 'now')"
            unfinished = "select id from responses where status in ('queued', 'in_progress')"
            (busy,) = database.execute(leased).fetchone()
            ids = tuple(id for (id,) in database.execute(unfinished))
        for id in ids:  # a process that died is only noticed when its response is requested
            self.get(f"/v1/responses/{id}")
        return int(busy), ids

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            found: bytes = answer.read()
        return found

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        url = f"http://127.0.0.1:{self.port}{path}"
        asked = urllib.request.Request(url, data=json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(asked, timeout=120) as answer:
            found: bytes = answer.read()
        return found


def gauges(text: str) -> dict[str, float]:
    """Return the values of a metrics page; those of one name with several labels are summed."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found
