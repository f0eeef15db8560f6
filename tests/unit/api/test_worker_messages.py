"""A worker that gets an invalid message from its parent."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.api.serving.process import ApiProcess
from penstock.api.serving.worker import PipeControl, _ParentConnection


async def test_worker_exits_on_an_invalid_message_of_its_parent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = asyncio.Event()

    async def serve() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    serving = asyncio.create_task(serve())
    await asyncio.sleep(0)
    lines = asyncio.StreamReader()
    lines.feed_data(b"{\n")
    # The message is not handled.
    parent = _ParentConnection(lines, ApiProcess.__new__(ApiProcess), PipeControl(print), serving)
    with caplog.at_level(logging.ERROR):
        await asyncio.wait_for(parent.follow(), 10)
    await asyncio.wait_for(ended.wait(), 10)
    assert "could not be handled" in caplog.text
