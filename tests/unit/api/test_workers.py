"""Several API processes at one address over the same engines."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import uvloop
from scripted_answers import CHAT

import penstock.api.serving.workers as workers
from penstock.api.serving.sockets import bind_socket, url_of
from penstock.api.serving.tasks import ApiTask, ModelTask
from penstock.api.serving.workers import WorkerGroup
from penstock.base.errors import ModelError
from penstock.config import EngineSettings, ModelSettings, ServerSettings
from penstock.engine.processes.fleet import ModelState
from tests.support.checkpoints.tiny_model import write_tiny_model
from tests.support.echo_engine import EchoCore, serving_echo
from tests.support.servers.http_server import frames_of
from tests.support.small_filesystems import mounted_disk
from tests.support.stopped_processes import stop_process
from tests.support.stores import sqlite_settings

pytestmark = pytest.mark.slow


@pytest.fixture
def core() -> EchoCore:
    return EchoCore()


@pytest.fixture
def engine_socket(tmp_path: Path, core: EchoCore) -> Iterator[str]:
    path = str(tmp_path / "engine.sock")
    with serving_echo(path, core):
        yield path


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_tiny_model(tmp_path / "tiny")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "small", 8 * 1024 * 1024) as place:
        yield place


class EchoFleet:
    """A fleet for workers, over engines that the tests start."""

    def __init__(self, model: str) -> None:
        self.states = {model: ModelState("loaded")}
        self.watchers = []
        self.asked = []

    def watch(self, watcher):
        self.watchers.append(watcher)
        watcher(self.states)

    async def load(self, model):
        self.asked.append(("load", model))
        if self.asked.count(("load", model)) > 1:
            raise ModelError("not twice")
        self._change(model, ModelState("loaded"))

    async def unload(self, model):
        self.asked.append(("unload", model))
        self._change(model, ModelState("unloaded"))

    def _change(self, model, state):
        self.states = {model: state}
        for watcher in self.watchers:
            watcher(self.states)


def task_for(model: str, engine_socket: str) -> ApiTask:
    store = sqlite_settings(Path(engine_socket).parent)
    settings = ServerSettings(host="127.0.0.1", workers=2, drain_timeout_s=5.0, store=store)
    served = ModelSettings(EngineSettings(model=model), id="tiny")
    return ApiTask((ModelTask(served, engine_socket),), None, settings)


@contextlib.asynccontextmanager
async def two_workers(model: str, engine_socket: str) -> AsyncIterator[tuple]:
    """Run two workers. Yields (url, group, fleet)."""
    with bind_socket("127.0.0.1", 0) as bound:
        fleet = EchoFleet("tiny")
        group = WorkerGroup(task_for(model, engine_socket), fleet, bound.fileno())
        try:
            await group.start()
            await group.wait_ready()
            yield url_of(bound), group, fleet
        finally:
            await group.close()


async def ask(url: str, text: str) -> str:
    """Send one request on a new connection, so that either worker may get it."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        body = {"messages": [{"role": "user", "content": text}]}
        answer = await http.post(CHAT, json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])


async def post(url: str, path: str, body: dict) -> httpx.Response:
    """Send one POST request on a new connection."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        return await http.post(path, json=body)


async def until_answered(url: str) -> None:
    while True:
        try:
            assert await ask(url, "back") == "back"
            return
        except httpx.TransportError:
            await asyncio.sleep(0.05)


async def test_workers_share_socket_engine_and_metrics(model, engine_socket):
    async with two_workers(model, engine_socket) as (url, group, _):
        texts = [f"text {index}" for index in range(20)]
        assert await asyncio.gather(*(ask(url, text) for text in texts)) == texts
        async with httpx.AsyncClient(base_url=url) as http:
            metrics = (await http.get("/metrics")).text
        line = next(x for x in metrics.splitlines() if x.startswith("http_requests_total{"))
        assert line.endswith(" 20.0") and "service_sequences_running 0.0" in metrics
        group.stop()
        await group.wait_stopped()
        assert [process.returncode for process in group._processes.values()] == [0, 0]


async def test_stored_data_is_shared_by_workers_and_outlives_them(model, engine_socket):
    async with two_workers(model, engine_socket) as (url, group, _):
        ids = [await upload(url, f"text {number}") for number in range(6)]
        for process in list(group._processes.values()):
            process.send_signal(signal.SIGKILL)
            await process.wait()
        await until_answered(url)
        for number, id in enumerate(ids * 2):
            async with httpx.AsyncClient(base_url=url, timeout=30) as http:
                content = await http.get(f"/v1/files/{id}/content")
                assert content.text == f"text {number % 6}"
        group.stop()
        await group.wait_stopped()


async def upload(url: str, text: str) -> str:
    """Upload a file. Returns its id."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        files, data = {"file": ("a.txt", text.encode())}, {"purpose": "user_data"}
        answer = await http.post("/v1/files", files=files, data=data)
        return str(answer.json()["id"])


async def test_killed_workers_are_restarted(model, engine_socket):
    async with two_workers(model, engine_socket) as (url, group, _):
        for process in list(group._processes.values()):
            process.send_signal(signal.SIGKILL)
            await process.wait()
        await until_answered(url)
        group.stop()
        await group.wait_stopped()


async def test_unresponsive_worker_is_killed_at_stop(model, engine_socket, monkeypatch):
    monkeypatch.setattr(workers, "STOP_TIMEOUT_S", 0.5)
    async with two_workers(model, engine_socket) as (_, group, _):
        stop_process(group._processes[0].pid)
        group.stop()
        group.stop()
        await asyncio.wait_for(group.wait_stopped(), 60)
        assert group._processes[0].returncode == -signal.SIGKILL


def test_workers_stop_while_another_one_is_dead(model, engine_socket):
    async def run() -> None:
        async with two_workers(model, engine_socket) as (_, group, _):
            group._processes[0].send_signal(signal.SIGKILL)
            await group._processes[0].wait()
            group.stop()
            await group.wait_stopped()
            assert group._processes[1].returncode == 0

    uvloop.run(run())  # as in the server: uvloop raises where asyncio only warns


async def test_workers_serve_if_the_metrics_disk_is_full(
    model, engine_socket, monkeypatch, small_disk
):
    """Also workers that are started later."""
    monkeypatch.setenv("TMPDIR", str(small_disk))
    monkeypatch.setattr(tempfile, "tempdir", None)
    async with two_workers(model, engine_socket) as (url, group, _):
        fill(small_disk)
        assert await ask(url, "mapped already") == "mapped already"
        for process in list(group._processes.values()):
            process.send_signal(signal.SIGKILL)
            await process.wait()
        await until_answered(url)
        pids = [process.pid for process in group._processes.values()]
        for number in range(8):
            assert await ask(url, f"text {number}") == f"text {number}"
        assert [process.pid for process in group._processes.values()] == pids
        group.stop()
        await group.wait_stopped()


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while file.write(b"0" * 4096):
            pass


async def refused_by_the_system(*_, **__):
    raise OSError(errno.EMFILE, "Too many open files")


async def test_workers_are_restarted_once_the_system_can_spawn_them(
    model, engine_socket, monkeypatch, caplog
):
    async with two_workers(model, engine_socket) as (url, group, _):
        with monkeypatch.context() as crowded:
            crowded.setattr(asyncio, "create_subprocess_exec", refused_by_the_system)
            for process in list(group._processes.values()):
                process.send_signal(signal.SIGKILL)
                await process.wait()
            while caplog.text.count("Too many open files") < 2:
                await asyncio.sleep(0.01)
        await until_answered(url)
        group.stop()
        await group.wait_stopped()


async def test_start_fails_if_a_worker_cannot_be_spawned(model, engine_socket, monkeypatch):
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused_by_the_system)
    with pytest.raises(ModelError, match="Too many open files"):
        async with two_workers(model, engine_socket):
            pass


async def test_worker_with_an_incomplete_message_is_replaced(model, engine_socket, monkeypatch):
    async with two_workers(model, engine_socket) as (url, group, _):
        process = group._processes[0]
        process.stdout.feed_data(b'{"type":"ask_n\n')
        await process.wait()
        while group._processes[0] is process:
            await asyncio.sleep(0.01)
        await until_answered(url)
        group.stop()
        await group.wait_stopped()


async def test_killed_worker_loses_only_its_own_streams(model, engine_socket, core):
    core.held = True
    texts = [f"text {number}" for number in range(24)]
    async with two_workers(model, engine_socket) as (url, group, _):
        opened = asyncio.Semaphore(0)
        streams = [asyncio.create_task(stream(url, text, opened)) for text in texts]
        for _ in streams:
            await opened.acquire()
        group._processes[0].send_signal(signal.SIGKILL)
        await group._processes[0].wait()
        core.release()
        answers = await asyncio.gather(*streams)
        lost = answers.count(None)
        assert 0 < lost < len(texts), "all connections went to one of the workers"
        assert [a for a in answers if a] == [t for t, a in zip(texts, answers, strict=True) if a]
        await until_answered(url)
        group.stop()
        await group.wait_stopped()


async def stream(url: str, text: str, opened: asyncio.Semaphore) -> str | None:
    """Return the streamed text, or None if the connection was closed."""
    body = {"messages": [{"role": "user", "content": text}], "stream": True}
    received = ""
    seen = False
    try:
        async with (
            httpx.AsyncClient(base_url=url, timeout=60) as http,
            http.stream("POST", CHAT, json=body) as answer,
        ):
            async for piece in answer.aiter_text():
                received += piece
                if not seen:
                    seen = True
                    opened.release()
    except httpx.TransportError:
        return None
    *chunks, end = frames_of(received)
    assert end == "[DONE]"
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
    return "".join(delta.get("content", "") for delta in deltas)


async def test_any_worker_unloads_and_reloads_for_all(model, engine_socket):
    async with two_workers(model, engine_socket) as (url, group, fleet):
        name = {"model_id": "tiny"}
        answer = await post(url, "/v1/models/unload", name)
        assert answer.json() == {"model_id": "tiny", "status": "unloaded"}
        hello = {"messages": [{"role": "user", "content": "hi"}]}
        for _ in range(8):  # any worker
            refused = await post(url, CHAT, hello)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "model_unloaded"
        answer = await post(url, "/v1/models/reload", name)
        assert answer.json() == {"model_id": "tiny", "status": "loaded"}
        for _ in range(8):
            assert await ask(url, "again") == "again"
        assert fleet.asked == [("unload", "tiny"), ("load", "tiny")]
        failed = await post(url, "/v1/models/reload", name)
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "model_load_failed")
        group.stop()
        await group.wait_stopped()


async def test_worker_that_cannot_start_reports_the_reason(tmp_path, engine_socket):
    with bind_socket("127.0.0.1", 0) as bound:
        nothing = str(tmp_path / "no-such-folder")
        task = task_for(nothing, engine_socket)
        group = WorkerGroup(task, EchoFleet("tiny"), bound.fileno())
        try:
            await group.start()
            with pytest.raises(ModelError, match="no-such-folder"):
                await group.wait_ready()
        finally:
            await group.close()
