"""A worker that cannot take in what its parent says."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.api.serving.process import ApiProcess
from penstock.api.serving.worker import PipeControl, _Parent


async def test_a_worker_ends_that_cannot_take_in_what_its_parent_says(
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
    # What a message would reach is not reached.
    parent = _Parent(lines, ApiProcess.__new__(ApiProcess), PipeControl(print), serving)
    with caplog.at_level(logging.ERROR):
        await asyncio.wait_for(parent.follow(), 10)
    await asyncio.wait_for(ended.wait(), 10)
    assert "cannot be taken in" in caplog.text
