"""The callers of an engine in a thread get EngineFault when it fails or is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from penstock.base.errors import EngineFault
from penstock.dialog import Sampling
from penstock.engine.local import LocalEngine
from penstock.engine.types import AdapterSource, AdapterState, EngineGauges, TokenRequest
from tests.support.echo_engine import EchoCore


class Panic(BaseException):
    """Like a Rust panic as PyO3 raises it."""


class Core(EchoCore):
    """A core that fails when asked for its gauges if it has a `failure`."""

    def __init__(self, failure: BaseException | None = None) -> None:
        super().__init__()
        self.closed = False
        self._failure = failure

    def gauges(self) -> EngineGauges:
        if self._failure is not None:
            raise self._failure
        return super().gauges()

    def adapters(self) -> tuple[AdapterState, ...]:
        return ()

    def close(self) -> None:
        self.closed = True


async def answer(engine: LocalEngine) -> list[int]:
    request = TokenRequest("a", (1, 2), Sampling(), 0, 2)
    return [t.token_id async for chunk in engine.generate(request) for t in chunk.tokens]


def everything(engine: LocalEngine) -> list[Awaitable[object]]:
    """Return one call of every method of an engine."""
    load = engine.add_adapter(AdapterSource("a", "folder"))
    return [engine.gauges(), engine.adapters(), load, answer(engine)]


@pytest.mark.parametrize("failure", [ValueError("wrong"), Panic("wrong")])
async def test_a_failure_fails_open_and_later_calls(failure: BaseException) -> None:
    core = Core(failure)
    engine = LocalEngine(core)
    for _ in range(2):
        for error in await asyncio.gather(*everything(engine), return_exceptions=True):
            assert isinstance(error, EngineFault)
    await engine.close()
    assert core.closed


async def test_a_closed_engine_refuses_every_call() -> None:
    engine = LocalEngine(Core())
    assert await answer(engine) == [1, 2]
    assert await engine.gauges() == EngineGauges() and await engine.adapters() == ()
    await engine.close()
    for asked in everything(engine):
        with pytest.raises(EngineFault, match="closed"):
            await asked


async def test_an_engine_closes_without_starting_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start_nothing(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    core = Core()
    engine = LocalEngine(core)
    assert await answer(engine) == [1, 2]
    monkeypatch.setattr(asyncio, "to_thread", start_nothing)  # as when the interpreter exits
    await engine.close()
    assert core.closed and not engine._thread.is_alive()
