"""A running container for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock.config.settings import SandboxSettings
from penstock.sandbox.launcher import MissingLayer, Sandbox, require_layers
from tests.sandbox.confined import launched


@pytest.fixture(scope="session", autouse=True)
def machine_with_all_layers() -> None:
    """Skip the tests on machines that lack a layer: their escapes would succeed there."""
    try:
        require_layers(SandboxSettings(mode="on"))
    except MissingLayer as missing:
        pytest.skip(str(missing))


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    """A container in which every layer must hold."""
    async with launched() as running:
        yield running
