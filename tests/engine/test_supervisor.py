"""The supervisor of an engine process, over a process that only prints an engine's lines."""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.engine.processes import supervisor as module
from penstock.engine.processes.supervisor import EngineSupervisor

READY = '{"event":"ready"}'


class Kept:
    """A supervisor whose process prints the line in a file, and ends with its input."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._line = folder / "line"
        engine = folder / "engine"
        line = shlex.quote(str(self._line))
        engine.write_text(f"#!/bin/sh\nread task\ncat {line}\nexec cat > /dev/null\n")
        engine.chmod(0o700)
        monkeypatch.setattr(module.sys, "executable", str(engine))
        monkeypatch.setattr(module, "FIRST_BACKOFF_S", 0.01)
        self.restarted = asyncio.Event()
        self.supervisor = EngineSupervisor(
            EngineSettings(model="none"), restarted=self.restarted.set
        )
        self.says(READY)

    def says(self, line: str) -> None:
        self._line.write_text(f"{line}\n")

    async def start(self) -> None:
        await self.supervisor.start()
        await self.supervisor.wait_ready()

    def kill(self) -> None:
        assert self.supervisor.pid is not None
        os.kill(self.supervisor.pid, signal.SIGKILL)

    async def until_restarts(self, count: int) -> None:
        while self.supervisor.restarts < count:
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        await self.supervisor.stop()
        assert not Path(self.supervisor.socket_path).parent.exists()


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(tmp_path, monkeypatch)


async def test_an_engine_is_restarted_when_the_system_has_a_process_for_it_again(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    await kept.start()
    with monkeypatch.context() as crowded:
        crowded.setattr(asyncio, "create_subprocess_exec", refused)
        kept.kill()
        await kept.until_restarts(3)
    await kept.restarted.wait()
    await kept.stop()


async def test_an_engine_whose_line_was_cut_off_is_replaced(kept: Kept) -> None:
    await kept.start()
    kept.says(READY[:-1])
    kept.kill()
    await kept.until_restarts(3)
    assert not kept.restarted.is_set()
    kept.says(READY)
    await kept.restarted.wait()
    await kept.stop()


@pytest.mark.parametrize("line", ["hello", READY[:-1], '{"event":"tired"}', "\xff"])
async def test_an_engine_that_says_what_is_no_status_line_is_ended(kept: Kept, line: str) -> None:
    kept.says(line)
    with pytest.raises(ModelError, match="no status line"):
        await kept.start()
    await asyncio.wait_for(kept.supervisor.drain(), 5)  # it does not run beside its successor
    kept.says(READY)
    await kept.start()
    await kept.stop()


async def test_a_restart_that_fails_again_and_again_is_logged_once(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LAST_BACKOFF_S", 0.01)
    await kept.start()
    kept.says(READY[:-1])
    kept.kill()
    await kept.until_restarts(6)
    for words in ("did not restart", "ended with status"):
        assert len([line for line in caplog.messages if words in line]) == 1
    kept.says(READY)
    await kept.restarted.wait()
    await kept.stop()


async def test_an_engine_that_nobody_watches_any_more_is_stopped_all_the_same(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(kept.supervisor, "_restarted", broken)
    await kept.start()
    kept.kill()
    watcher = kept.supervisor._watcher
    assert watcher is not None
    await asyncio.wait([watcher])
    await kept.stop()


async def test_an_engine_that_ends_as_it_is_killed_is_stopped_all_the_same(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept.start()
    process = kept.supervisor._process
    assert process is not None and process.stdin is not None
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0)
    kill = process.kill

    def too_late() -> None:
        kill()
        raise ProcessLookupError

    monkeypatch.setattr(process, "kill", too_late)
    await kept.stop()


def test_a_start_that_is_cut_off_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the event loop that serves, which does not wait for a process whose start is cancelled."""

    async def cut_off(turns: int) -> bool:
        kept = Kept(tmp_path, monkeypatch)
        starting = asyncio.create_task(kept.supervisor.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        (cut,) = await asyncio.gather(starting, return_exceptions=True)
        await kept.stop()
        assert psutil.Process().children() == before
        return isinstance(cut, asyncio.CancelledError)

    before = psutil.Process().children()
    cuts = [uvloop.run(cut_off(turns)) for turns in range(12)]
    assert any(cuts[1:]), "no start was under way"
