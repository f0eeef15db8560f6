"""The server that is soaked: its processes, its folders, and what it holds at a moment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.lora import write_adapter
from bench.machine import tree
from penstock.config import read_environment
from penstock.models.architectures import spec_of_gguf
from penstock.models.sources import resolve_model
from penstock.quant.gguf import GgufFile

START_TIMEOUT_S = 120.0
READY = re.compile(r"ready on http://[^:]+:(\d+)")
# A cache that is small enough to be full soon: rows are preempted, and its memory is all touched.
SETTINGS = """\
default_model_id = "text"
[server]
host = "127.0.0.1"
port = 0
stall_timeout_s = 5.0
access_log_format = "json"
access_log_health = true
[store]
url = "sqlite:///{place}/penstock.db"
blobs = "{place}/blobs"
[[models]]
model = "{model}"
id = "text"
cache_mb = 96
[models.adapter]
enable_lora = true
lora_max_adapters = 4
lora_max_rank = 8
[[models]]
model = "{embedder}"
id = "embedding"
"""


@dataclass(frozen=True)
class Held:
    """What the server holds. `gauges`: of /metrics, by name. `leases`: of adapters."""

    api_rss_mib: float
    engine_rss_mib: dict[int, float]
    api_fds: int
    engine_fds: dict[int, int]
    threads: int
    temporary: tuple[str, ...]
    gauges: dict[str, float]
    leases: int
    retired: int


class SoakedServer:
    """`penstock serve` with a text model, its adapters and an embedding model, in a folder of its
    own."""

    def __init__(self, place: Path, model: str, embedder: str) -> None:
        self.place = place
        self._settings = SETTINGS.format(place=place, model=model, embedder=embedder)
        self._model = model
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

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
        """SIGTERM, and time to drain."""
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
        """Of the process that has ended."""
        assert self._process is not None
        return self._process.poll()

    @property
    def engines(self) -> list[int]:
        assert self._process is not None
        return [pid for pid in tree(self._process.pid) if _is_engine(pid)]

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def memory(self) -> tuple[float, dict[int, float]]:
        """Resident MiB of the API process and of each engine."""
        assert self._process is not None
        return _rss_mib(self._process.pid), {pid: _rss_mib(pid) for pid in self.engines}

    def held(self) -> Held:
        """Everything. Raises OSError while it cannot be asked."""
        assert self._process is not None
        api = self._process.pid
        rss, engines = self.memory()
        adapters = json.loads(self.get("/v1/lora_adapters?model=text"))
        return Held(
            api_rss_mib=rss,
            engine_rss_mib=engines,
            api_fds=_num_fds(api),
            engine_fds={pid: _num_fds(pid) for pid in engines},
            threads=len(os.listdir(f"/proc/{api}/task")),
            temporary=tuple(sorted(os.listdir(self.place / "tmp"))),
            gauges=gauges(self.get("/metrics").decode()),
            leases=sum(generation["active_leases"] for generation in adapters["generations"]),
            retired=adapters["retired_generations"],
        )

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
    """The values of an exposition; those of one name and several labels are summed."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found


def _is_engine(pid: int) -> bool:
    try:
        return b"penstock.engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _rss_mib(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0


def _num_fds(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
