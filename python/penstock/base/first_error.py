"""Runs coroutines side by side until all have ended or one has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")


async def all_or_first_error(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return the results in the order of `work`. The first error cancels all other coroutines and
    is raised once they have ended; cancelling the call cancels all."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
