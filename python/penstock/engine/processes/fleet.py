"""Starts and ends the engine processes of the models that one server offers.

The process that the operator started owns the fleet. API processes receive the states of the models
and request changes. This module knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.registry import LoadedAdapter
from penstock.base.errors import ModelError
from penstock.base.resources import available_bytes
from penstock.config import EngineSettings, Environment, read_environment
from penstock.engine.processes.supervisor import EngineSupervisor
from penstock.engine.types import EngineInfo

if TYPE_CHECKING:
    from penstock.engine.adapters.catalog import AdapterLoadRequest
    from penstock.engine.adapters.model_adapters import ModelAdapters

Status = Literal["loaded", "unloaded", "reloading"]


class ModelState(msgspec.Struct, frozen=True):
    """The state of one model.

    `status`: "reloading" from the start of its engine until the engine serves; "unloaded" as soon
    as new requests are refused, even while running answers finish.
    `failure`: why the last load failed, for the operator.
    `adapters`: its loaded adapters, None if it has no LoRA runtime.
    """

    status: Status
    failure: str | None = None
    adapters: tuple[LoadedAdapter, ...] | None = None


States = Mapping[str, ModelState]
Watcher = Callable[[States], None]


class EngineFleet:
    """Runs one engine process per loaded model. `settings`: engine settings by model id.

    Engines plan their memory one after the other. Each may use the memory that was available at
    first, minus the memory of the engines before it, so that all of them fit. Adapters are stored
    in the home folder of `environment`.
    """

    def __init__(
        self, settings: Mapping[str, EngineSettings], environment: Environment | None = None
    ) -> None:
        environment = environment or read_environment()
        self._engines = {
            name: _Member(one, environment, self._notify_watchers) for name, one in settings.items()
        }
        self._available_bytes = available_bytes()
        self._watchers: list[Watcher] = []
        self._planning = asyncio.Lock()

    @property
    def states(self) -> dict[str, ModelState]:
        return {name: engine.shown for name, engine in self._engines.items()}

    def socket_path(self, model: str) -> str:
        """Return the path of the socket on which a model's engine serves."""
        return self._engines[model].supervisor.socket_path

    def report(self, model: str) -> str:
        """Return the memory formula of a model that has been loaded at least once."""
        return self._engines[model].supervisor.report

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with the states of all models, now and after each change, in this asyncio
        loop."""
        self._watchers.append(watcher)
        watcher(self.states)

    def info(self, model: str) -> EngineInfo | None:
        """Return the engine info of a model, or None if the model has never been loaded."""
        return self._engines[model].supervisor.info

    async def start(self, models: Sequence[str]) -> None:
        """Set the state of `models` to reloading and spawn the engine of the first one, without
        waiting until it serves. The caller must then `load` each model."""
        for model in models:
            self._engines[model].state = ModelState("reloading")
        if models:
            await self._engines[models[0]].supervisor.start()
            self._engines[models[0]].spawned = True

    async def load(self, model: str) -> None:
        """Load a model and return when its engine serves. Concurrent callers share one load, which
        continues if they are cancelled. Raises ModelError."""
        engine = self._engines[model]
        if engine.loading is None:
            engine.loading = asyncio.create_task(self._load(model))
            engine.loading.add_done_callback(lambda _: _forget_load(engine))
        await asyncio.shield(engine.loading)

    async def unload(self, model: str) -> None:
        """Refuse new requests at once. Return when the running answers have finished and the engine
        has ended. Do nothing if the model is not loaded."""
        engine = self._engines[model]
        if engine.loading is not None:
            with contextlib.suppress(ModelError):
                await asyncio.shield(engine.loading)
        if engine.unloading is None:
            engine.unloading = asyncio.create_task(self._unload(engine))
            engine.unloading.add_done_callback(lambda _: _forget_unload(engine))
        await asyncio.shield(engine.unloading)

    async def load_adapter(self, model: str, order: AdapterLoadRequest) -> LoadedAdapter:
        """Load an adapter of a model. The load continues if the caller is cancelled. Raises
        AdapterRefused."""
        return await self._adapters(model).catalog.load(order)

    async def unload_adapter(self, model: str, alias: str, expected: str | None) -> LoadedAdapter:
        """Unload an adapter of a model. Raises AdapterRefused."""
        return await self._adapters(model).catalog.unload(alias, expected)

    async def stop(self) -> None:
        """End all engines at once, without waiting for running answers."""
        tasks = [t for e in self._engines.values() for t in (e.loading, e.unloading) if t]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(e.stop() for e in self._engines.values()))

    async def _load(self, model: str) -> None:
        engine = self._engines[model]
        if engine.unloading is not None:
            await asyncio.shield(engine.unloading)
        if engine.state.status == "loaded":
            return
        self._change(engine, ModelState("reloading"))
        try:
            async with self._planning:
                if not engine.spawned:
                    await engine.supervisor.start(self._left_bytes())
                engine.spawned = False
                await engine.supervisor.wait_ready()
                if engine.adapters is not None:
                    await engine.adapters.open(engine.supervisor.socket_path)
                assert engine.supervisor.info is not None
                engine.planned_bytes = engine.supervisor.info.memory_bytes
        except Exception as error:  # this load has failed, whatever the reason
            self._change(engine, ModelState("unloaded", str(error)))
            await engine.drain()
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"the engine cannot be used: {error}") from error
        self._change(engine, ModelState("loaded"))

    async def _unload(self, engine: _Member) -> None:
        self._change(engine, ModelState("unloaded"))
        await engine.drain()
        engine.planned_bytes = 0

    def _adapters(self, model: str) -> ModelAdapters:
        adapters = self._engines[model].adapters
        if adapters is None:
            raise AdapterRefused(
                "lora_runtime_unavailable", f"the model '{model}' has no dynamic LoRA runtime"
            )
        return adapters

    def _left_bytes(self) -> int | None:
        if self._available_bytes is None:
            return None
        return self._available_bytes - sum(e.planned_bytes for e in self._engines.values())

    def _change(self, engine: _Member, state: ModelState) -> None:
        engine.state = state
        self._notify_watchers()

    def _notify_watchers(self) -> None:
        for watcher in self._watchers:
            watcher(self.states)


class _Member:
    """One model of the fleet. `spawned`: `EngineFleet.start` has spawned its engine, so that `load`
    need not."""

    def __init__(
        self, settings: EngineSettings, environment: Environment, changed: Callable[[], None]
    ) -> None:
        self.adapters: ModelAdapters | None = None
        if settings.lora is None:
            self.supervisor = EngineSupervisor(settings)
        else:
            # Imported here, so that an engine without adapters is spawned sooner.
            from penstock.engine.adapters.model_adapters import ModelAdapters

            adapters = ModelAdapters(settings.lora, environment, changed)
            self.adapters = adapters
            self.supervisor = EngineSupervisor(
                settings, adapters=adapters.catalog.sources, restarted=adapters.settle_soon
            )
        self.state = ModelState("unloaded")
        self.planned_bytes = 0
        self.spawned = False
        self.loading: asyncio.Task[None] | None = None
        self.unloading: asyncio.Task[None] | None = None

    @property
    def shown(self) -> ModelState:
        """The state of the model with its current adapters."""
        if self.adapters is None:
            return self.state
        return msgspec.structs.replace(self.state, adapters=self.adapters.catalog.adapters)

    async def drain(self) -> None:
        """Return when all callers have disconnected from the engine and the engine has ended."""
        if self.adapters is not None:
            await self.adapters.close()
        await self.supervisor.drain()

    async def stop(self) -> None:
        """End the engine at once and delete the copies of its adapters."""
        if self.adapters is not None:
            await self.adapters.close()
            await self.adapters.catalog.close()
        await self.supervisor.stop()


def _forget_load(engine: _Member) -> None:
    if engine.loading is not None and not engine.loading.cancelled():
        engine.loading.exception()  # its callers, if any, have received the error
    engine.loading = None


def _forget_unload(engine: _Member) -> None:
    engine.unloading = None
