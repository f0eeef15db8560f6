"""Exposure of a server to other users of the machine: its sockets and files; and its CPU time when
idle."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from bench.lora import write_adapter
from penstock.models.families.registry import spec_of_gguf
from penstock.quant.gguf.gguf_file import GgufFile
from tests.e2e.conftest import RunningServer

StartServer = Callable[..., RunningServer]
CONSTRAINED = {"prompt": "A", "max_tokens": 4, "grammar": {"type": "regex", "value": "[a-z]{3}"}}
IDLE_S = 5.0
MOST_OF_A_CORE = 0.01
FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture(scope="module")
def adapter(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA folder for the default model."""
    spec, _ = spec_of_gguf(GgufFile(default_model))
    return write_adapter(tmp_path_factory.mktemp("lora") / "a", spec, seed=1, rank=4)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set the home of all servers, with an umask that removes no permissions."""
    for name, folder in (("PENSTOCK_HOME", tmp_path / "home"), ("TMPDIR", tmp_path / "tmp")):
        folder.mkdir()
        monkeypatch.setenv(name, str(folder))
    before = os.umask(0)
    yield tmp_path
    os.umask(before)


def processes(server: RunningServer) -> list[psutil.Process]:
    own = psutil.Process(server.process.pid)
    return [own, *own.children(recursive=True)]


def use(server: RunningServer) -> None:
    """Use each feature that starts a process or leaves a file."""
    with httpx.Client(base_url=server.url, timeout=120) as client:
        answers = [
            client.post("/v1/completions", json=CONSTRAINED),
            client.post("/v1/completions", json=CONSTRAINED | {"model": "lora"}),
            client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 2}),
            client.post("/v1/files", files={"file": b"text"}, data={"purpose": "user_data"}),
            client.get("/v1/models"),
        ]
        assert [answer.status_code for answer in answers] == [200] * len(answers), answers
        body = CONSTRAINED | {"max_tokens": 1000, "stream": True, "ignore_eos": True}
        del body["grammar"]
        with client.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_lines())  # disconnect


def start(
    start_server: StartServer, default_model: Path, adapter: Path, *options: str
) -> RunningServer:
    return start_server(str(default_model), "--lora", f"lora={adapter}", *options)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_only_the_port_listens(
    start_server: StartServer, default_model: Path, adapter: Path, home: Path, workers: str
) -> None:
    server = start(start_server, default_model, adapter, "--workers", workers)
    use(server)
    host, _, port = server.url.removeprefix("http://").partition(":")
    open_to_all, paths = set(), set()
    for process in processes(server):
        for one in process.net_connections("inet"):
            if one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM:
                open_to_all.add(tuple(one.laddr))
        paths.update(one.laddr for one in process.net_connections("unix") if one.laddr)
    assert open_to_all == {(host, int(port))}
    assert paths
    for path in map(Path, paths):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path


def test_files_of_a_server_are_readable_by_their_owner_only(
    start_server: StartServer, default_model: Path, adapter: Path, home: Path
) -> None:
    server = start(start_server, default_model, adapter, "--workers", "2", *own_store(home))
    use(server)
    kept = list(files_under(home))
    assert {"penstock.db", "adapter_model.safetensors"} <= {path.name for path in kept}
    assert any("blobs" in path.parts for path in kept)
    assert [str(path) for path in kept if readable_by_others(path, home)] == []


def own_store(home: Path) -> tuple[str, ...]:
    """Return the options for the server's default store, which RunningServer overrides."""
    place = home / "home"
    return ("--store", f"sqlite:///{place}/penstock.db", "--blobs", str(place / "blobs"))


def files_under(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names)


def readable_by_others(path: Path, top: Path) -> bool:
    """Return whether modes give others access to a path, from `top` on."""
    parents = [parent for parent in path.parents if top in parent.parents]
    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
        return all(one.stat().st_mode & FOR_OTHERS for one in (path, *parents))
    return False


@pytest.mark.slow
def test_an_idle_server_uses_no_cpu_time(
    start_server: StartServer, default_model: Path, adapter: Path, home: Path
) -> None:
    """Measure CPU time of the processes, which other load on the machine does not change."""
    server = start(start_server, default_model, adapter, "--workers", "2")
    use(server)
    with httpx.Client(base_url=server.url) as client:  # an idle connection
        running = "service_sequences_running 0.0"
        while running not in client.get("/metrics").text:
            time.sleep(0.05)
        began = taken(server)
        time.sleep(IDLE_S)
        assert taken(server) - began < MOST_OF_A_CORE * IDLE_S
        assert len(
            [p for p in processes(server) if "grammar.trial_process" in " ".join(p.cmdline())]
        )


def taken(server: RunningServer) -> float:
    """Return the CPU seconds that all processes of a server have used."""
    times = [process.cpu_times() for process in processes(server)]
    return sum(time.user + time.system for time in times)
