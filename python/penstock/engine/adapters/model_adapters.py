"""Connects the adapter catalog of one model of a fleet to the model's engine process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.config import Environment, LoraSettings
from penstock.engine.adapters.catalog import AdapterCatalog
from penstock.models.hub.hub_access import hub_access_of

if TYPE_CHECKING:
    from penstock.engine.ipc.client import EngineClient


class ModelAdapters:
    """The adapter catalog of one model and its connection to the current engine process.

    `catalog` outlives engine processes: a restarted engine loads all adapters before it serves.
    `changed`: called after each change of the aliases.
    """

    def __init__(
        self, settings: LoraSettings, environment: Environment, changed: Callable[[], None]
    ) -> None:
        self.catalog = AdapterCatalog(
            settings,
            environment.home,
            root=environment.lora_root,
            hub=hub_access_of(environment),
            changed=changed,
        )
        self._preloaded = False
        self._client: EngineClient | None = None
        self._settling: set[asyncio.Task[None]] = set()

    async def open(self, socket_path: str) -> None:
        """Connect to an engine that serves, and create the folder for copies of adapters. The first
        time, also load the configured adapters. Raises ModelError."""
        # Imported here, so that a server without adapters starts faster.
        from penstock.engine.ipc.client import EngineClient

        self._client = EngineClient(socket_path)
        await self._client.wait_ready()
        self.catalog.attach(self._client)
        await self.catalog.settle()
        await self.catalog.open()
        if not self._preloaded:
            await self.catalog.preload()
            self._preloaded = True

    def settle_soon(self) -> None:
        """Start to send a restarted engine the changes that it missed. Return at once."""
        task = asyncio.create_task(self._settle())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def close(self) -> None:
        """Close the connection to the engine, so that the engine can end."""
        self.catalog.detach()
        for task in self._settling:
            task.cancel()
        await asyncio.gather(*self._settling, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _settle(self) -> None:
        if self._client is not None:
            await self._client.wait_ready()
            await self.catalog.settle()
