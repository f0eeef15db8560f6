"""Time limits of coroutines."""

from __future__ import annotations

import asyncio

import pytest

from penstock.base.time_limit import within


async def test_result_and_errors_pass_through() -> None:
    async def fail() -> None:
        raise ValueError

    assert await within(10, asyncio.sleep(0, "x")) == "x"
    with pytest.raises(ValueError):
        await within(10, fail())


async def test_work_has_ended_when_its_time_is_over() -> None:
    ended = False

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    with pytest.raises(asyncio.TimeoutError):
        await within(0.01, work())
    assert ended


async def test_cancellation_is_kept_if_the_work_ends_at_the_same_moment() -> None:
    async def caller() -> None:
        await within(10, asyncio.sleep(0))
        await within(10, asyncio.sleep(0))

    for turns in range(6):
        task = asyncio.create_task(caller())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
