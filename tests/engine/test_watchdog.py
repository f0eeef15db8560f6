"""A step that hangs is reported once, with the stacks of all threads."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from penstock.dialog import Sampling
from penstock.engine.ipc.server import EngineServer
from penstock.engine.types import TokenOutput, TokenRequest
from penstock.engine.watchdog import STALL_S, Watchdog
from tests.support.echo_engine import EchoCore


class HangingCore(EchoCore):
    """Its step waits for `gate`."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def step(self) -> list[TokenOutput]:
        self.entered.set()
        self.gate.wait()
        return super().step()


def much_later() -> float:
    return time.monotonic() + STALL_S + 1


def test_an_engine_whose_step_hangs_tells_once_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = HangingCore()
    core.submit(TokenRequest("a", (1,), Sampling(), 0, 1))
    with (tmp_path / "stacks").open("w+") as stacks:
        watch = Watchdog(stacks)
        server = EngineServer(core, str(tmp_path / "s"), watch)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            core.entered.wait()
            assert not watch.look(time.monotonic())  # it may be a long one
            assert [watch.look(much_later()) for _ in range(2)] == [True, False]
        finally:
            core.gate.set()
            server.stop()
            thread.join()
        stacks.seek(0)
        assert "in step" in stacks.read()
    assert "a step has taken" in caplog.text


def test_what_is_between_steps_stalls_nobody(tmp_path: Path) -> None:
    with (tmp_path / "stacks").open("w") as stacks:
        watch = Watchdog(stacks)
        assert not watch.look(much_later())
        with watch:
            pass
        assert not watch.look(much_later())
        with pytest.raises(ValueError), watch:
            raise ValueError
        assert not watch.look(much_later())
        with watch:
            assert watch.look(much_later())
