"""Faults of a running server: a killed engine, a drain, a parent that dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.conftest import COMMAND, RunningServer

BODY = {"prompt": "Once upon a time", "max_tokens": 1000, "ignore_eos": True, "stream": True}


async def stream(
    client: httpx.AsyncClient, url: str, first: asyncio.Event, body: dict[str, object]
) -> list[str]:
    """Return the data lines of one streamed completion."""
    lines = []
    async with client.stream("POST", url + "/v1/completions", json=body, timeout=120) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                lines.append(line.removeprefix("data: "))
                first.set()
    return lines


async def test_killed_engine_fails_its_streams_and_restarts(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server()
    firsts = [asyncio.Event() for _ in range(16)]
    async with httpx.AsyncClient() as client:
        tasks = [asyncio.create_task(stream(client, server.url, e, BODY)) for e in firsts]
        await asyncio.gather(*(event.wait() for event in firsts))
        os.kill(server.engine_pid, signal.SIGKILL)
        answers = await asyncio.gather(*tasks)
        for lines in answers:
            assert lines[-1] == "[DONE]"
            error = json.loads(lines[-2])["error"]
            assert error["code"] == "engine_fault" and error["message"]
        assert (await client.get(server.url + "/health")).status_code == 200
        status, deadline = 0, time.monotonic() + 60
        while status != 200 and time.monotonic() < deadline:
            body = BODY | {"stream": False, "max_tokens": 3}
            answer = await client.post(server.url + "/v1/completions", json=body, timeout=60)
            status = answer.status_code
            assert status in (200, 503), answer.text
            await asyncio.sleep(0.05)
        assert status == 200


async def test_sigterm_lets_open_answers_finish_then_stops(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server()
    engine = psutil.Process(server.engine_pid)
    first = asyncio.Event()
    async with httpx.AsyncClient() as client:
        body = BODY | {"max_tokens": 60}
        task = asyncio.create_task(stream(client, server.url, first, body))
        await first.wait()
        server.process.send_signal(signal.SIGTERM)
        lines = await task
    assert lines[-1] == "[DONE]"
    assert json.loads(lines[-2])["usage"]["completion_tokens"] == 60
    assert await asyncio.to_thread(server.process.wait, 30) == 0
    assert not engine.is_running()


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_sigterm_to_every_process_lets_open_answers_finish(
    start_server: Callable[..., RunningServer], workers: str
) -> None:
    """Signal every process, as systemd and container runtimes do."""
    server = start_server("--workers", workers)
    own = psutil.Process(server.process.pid)
    first = asyncio.Event()
    async with httpx.AsyncClient() as client:
        body = BODY | {"max_tokens": 60}
        task = asyncio.create_task(stream(client, server.url, first, body))
        await first.wait()
        for process in (*own.children(recursive=True), own):
            process.send_signal(signal.SIGTERM)
        lines = await task
    assert lines[-1] == "[DONE]"
    assert json.loads(lines[-2])["usage"]["completion_tokens"] == 60
    assert await asyncio.to_thread(server.process.wait, 30) == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_a_load(default_model: Path, number: signal.Signals, status: int) -> None:
    command = [*COMMAND, "serve", str(default_model), "--host", "127.0.0.1", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    engine = wait_for_engine(server.pid)
    engine.suspend()  # so that the signal arrives during the load
    server.send_signal(number)
    with contextlib.suppress(psutil.NoSuchProcess):  # the server may have ended the engine already
        engine.resume()
    said, _ = server.communicate(timeout=60)
    assert (server.returncode, engine.is_running()) == (status, False), said
    assert "Traceback" not in said
    assert "ready" not in said


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_signal_makes_every_process_dump_its_stacks(
    start_server: Callable[..., RunningServer], workers: str
) -> None:
    server = start_server("--workers", workers)
    own = psutil.Process(server.process.pid)
    for told, process in enumerate((own, *own.children(recursive=True)), 1):
        process.send_signal(signal.SIGUSR1)
        while sum("Current thread" in line for line in server.lines) < told:
            await asyncio.sleep(0.02)
    while not any("engine/ipc/server.py" in line for line in server.lines):
        await asyncio.sleep(0.02)
    body = BODY | {"stream": False, "max_tokens": 3}
    async with httpx.AsyncClient() as client:
        answer = await client.post(server.url + "/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200


def wait_for_engine(parent: int, timeout_s: float = 60) -> psutil.Process:
    """Return the engine process as soon as it exists."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        for child in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "penstock.engine.processes.process" in " ".join(child.cmdline()):
                    return child
        time.sleep(0.005)
    raise AssertionError("no engine was started")


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_no_process_outlives_a_killed_server(
    start_server: Callable[..., RunningServer],
    workers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = start_server("--workers", workers)
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert list(tmp_path.iterdir())
    server.process.kill()
    server.process.wait(10)
    for child in children:
        await asyncio.to_thread(child.wait, 60)
    assert not list(tmp_path.iterdir())


async def test_several_workers_share_one_engine(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server("--workers", "2")
    children = psutil.Process(server.process.pid).children(recursive=True)
    engines = [c for c in children if "penstock.engine.processes.process" in " ".join(c.cmdline())]
    assert len(engines) == 1
    body = BODY | {"stream": False, "max_tokens": 4, "temperature": 0}
    url = server.url + "/v1/completions"
    answers = []
    for _ in range(8):  # a new connection each, so that both workers are used
        async with httpx.AsyncClient() as client:
            answers.append((await client.post(url, json=body, timeout=60)).json()["choices"])
    assert all(answer == answers[0] for answer in answers)


async def test_full_queue_is_answered_with_429_and_retry_after(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server("--max-seqs", "1", "--max-queue", "1")
    async with httpx.AsyncClient() as client:
        body = BODY | {"stream": False, "max_tokens": 150}
        url = server.url + "/v1/completions"
        posts = [client.post(url, json=body, timeout=120) for _ in range(8)]
        answers = await asyncio.gather(*posts)
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[0] == 200 and statuses[-1] == 429
    refused = [answer for answer in answers if answer.status_code == 429]
    assert all(answer.headers["retry-after"] for answer in refused)
    assert all(answer.json()["error"]["code"] == "queue_full" for answer in refused)


def test_server_ends_with_the_cause_when_the_default_store_cannot_be_opened(
    default_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "penstock.db").mkdir()
    run = subprocess.run(
        [*COMMAND, "serve", str(default_model), "--host", "127.0.0.1", "--port", "0"],
        env=os.environ | {"PENSTOCK_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 1 and "ready" not in run.stdout
    assert "penstock: [store] cannot be opened" in run.stderr
