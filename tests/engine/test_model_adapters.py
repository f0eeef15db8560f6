"""The connection that reports an engine's adapters, while the engine restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.config import LoraSettings, read_environment
from penstock.engine.adapters.model_adapters import ModelAdapters
from penstock.engine.ipc.messages import Hello, frame
from penstock.engine.types import EngineInfo

HELLO = frame(Hello(EngineInfo("hello", 1000, 1000, 4, 10, 16, 0, "test")))


async def test_nothing_goes_on_behind_an_engine_that_did_not_come_back(tmp_path: Path) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO)

    before = asyncio.all_tasks()
    adapters = ModelAdapters(LoraSettings(), read_environment(), lambda: None)
    async with await asyncio.start_unix_server(greet, tmp_path / "engine.sock") as server:
        await adapters.open(str(tmp_path / "engine.sock"))
        server.close()
    assert adapters._client is not None
    await adapters._client.close()  # as if it never connects again
    for _ in range(2):  # it restarted, died before it was connected, and restarted again
        adapters.settle_soon()
        await asyncio.sleep(0)
    await adapters.close()
    assert asyncio.all_tasks() == before
