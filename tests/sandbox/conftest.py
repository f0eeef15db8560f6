"""A running container for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from penstock.sandbox.launcher import Sandbox
from tests.sandbox.confined import launched


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    """A container in which every layer must hold."""
    async with launched() as running:
        yield running
