"""The adapter catalog of one model: aliases, copies of the adapters' files, and the engine's
revisions.

It lives in the process that owns the engine, which knows only revisions. When a new revision is
loaded, the catalog switches the alias to it and retires the old revision. The old files are deleted
once no request uses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from penstock.adapters.errors import STATUS_OF, AdapterRefused
from penstock.adapters.hub_source import find_adapter
from penstock.adapters.private_copy import copy_adapter
from penstock.adapters.registry import AdapterRegistry, Load, LoadedAdapter
from penstock.adapters.storage import AdapterStorage
from penstock.adapters.view import AdapterView
from penstock.base.errors import EngineFault, ModelError, ServiceError, Unavailable
from penstock.config import Environment, LoraSettings
from penstock.engine.types import AdapterSource, AdapterState
from penstock.models.hub.hub_access import HubAccess, hub_access_of

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class AdapterLoadRequest(msgspec.Struct, frozen=True):
    """A request to load an adapter.

    `alias`: the name by which clients will call the adapter.
    `folder`: the folder with its files or, unless `rooted`, an id of the model hub.
    `replace`, `expected`: see `AdapterRegistry.begin`.
    `pinned`: keep the adapter in memory.
    `rooted`: a client sent the request, so `folder` must be under the configured root.
    """

    alias: str
    folder: str
    replace: bool = False
    expected: str | None = None
    pinned: bool = False
    rooted: bool = True


class AdapterEngine(Protocol):
    """The methods of an engine that the adapter catalog uses. All are called from one asyncio
    loop."""

    async def add_adapter(self, source: AdapterSource) -> AdapterState:
        """Load a revision and return when requests can use it, at once if it is loaded already.
        Raises AdapterRefused for faulty files, EngineFault if the engine dies, and Unavailable
        while the engine starts."""
        ...

    async def retire_adapter(self, revision: str) -> None:
        """Refuse the revision to new requests; running requests go on with it. Do nothing if the
        revision is not loaded."""
        ...

    async def adapters(self) -> tuple[AdapterState, ...]: ...


class AdapterCatalog:
    """Loads and unloads the adapters of one model. All methods are called from one asyncio loop.

    `settings`: limits, and the adapters to load at the start.
    `home`: the folder under which the copies of adapters are stored.
    `root`: the folder from which clients may load adapters.
    `hub`: where ids of the model hub are looked up.
    `changed`: called after each change of the aliases.
    """

    def __init__(
        self,
        settings: LoraSettings,
        home: Path,
        *,
        root: Path | None = None,
        hub: HubAccess | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._home = home
        self._root = root
        self._hub = hub or HubAccess()
        self._changed = changed
        self._registry = AdapterRegistry(settings.max_adapters)
        self._sources: dict[str, AdapterSource] = {}  # as last sent to the engine
        self._pinning: str | None = None  # the revision that the current load pins
        self._engine: AdapterEngine | None = None
        self._storage: asyncio.Future[AdapterStorage] | None = None
        self._filing = asyncio.Lock()  # files are not added while others are deleted
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def adapters(self) -> tuple[LoadedAdapter, ...]:
        """The adapters that the current aliases name."""
        return self._registry.adapters

    def sources(self) -> tuple[AdapterSource, ...]:
        """Return the revisions, with their folders, that an engine must load when it starts."""
        live = self._registry.live
        return tuple(
            msgspec.structs.replace(source, pinned=self._is_pinned(source.revision))
            for source in self._sources.values()
            if source.revision in live
        )

    def attach(self, engine: AdapterEngine) -> None:
        """Set the engine, which must be serving and have loaded `sources`."""
        self._engine = engine

    def detach(self) -> None:
        """Stop using the engine, because it is about to end."""
        self._engine = None

    async def load(self, order: AdapterLoadRequest) -> LoadedAdapter:
        """Load an adapter and switch its alias to the new revision. The load continues if the
        caller is cancelled. A failed load changes nothing. Raises AdapterRefused."""
        load = self._registry.begin(order.alias, replace=order.replace, expected=order.expected)
        return await self._to_its_end(self._load(load, order))

    async def open(self) -> None:
        """Create the folder for copies of adapters, which every load needs. Raises ModelError."""
        try:
            await self._open_storage()
        except AdapterRefused as error:
            cause = error.__cause__
            raise ModelError(
                f"lora: {self._home / 'adapters'} cannot be used: "
                f"{cause.strerror if isinstance(cause, OSError) else error.message}; make it"
                " writable and its disk large enough, or name another place with PENSTOCK_HOME"
            ) from None

    async def preload(self) -> None:
        """Load the configured adapters that are not loaded yet. Raises ModelError that names the
        alias."""
        loaded = {adapter.alias for adapter in self.adapters}
        for source in self._settings.preload:
            if source.alias in loaded:
                continue
            order = AdapterLoadRequest(
                source.alias, source.source, pinned=source.pinned, rooted=False
            )
            try:
                await self.load(order)
            except AdapterRefused as error:
                raise ModelError(f"lora {source.alias}: {error.message}") from None

    async def unload(self, alias: str, expected: str | None = None) -> LoadedAdapter:
        """Remove an alias at once, then clean up after it. `expected`: see
        `AdapterRegistry.remove`. The clean-up continues if the caller is cancelled. Raises
        AdapterRefused."""
        removed = self._registry.remove(alias, expected=expected)
        self._changed()
        await self.settle()
        return removed

    async def settle(self) -> None:
        """Retire the revisions that no alias names, update pins, and delete the files of revisions
        that the engine has freed. Called after every change and after a restart of the engine. The
        work continues if the caller is cancelled."""
        await self._to_its_end(self._settle())

    async def close(self) -> None:
        """End all loads and delete all copies of adapters."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._storage is not None:
            with contextlib.suppress(AdapterRefused):
                storage = await self._storage
                try:
                    await asyncio.to_thread(storage.close)
                except RuntimeError:  # the interpreter is shutting down and starts no threads
                    storage.close()

    async def _to_its_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` to its end even if the caller is cancelled; only `close` cancels `work`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()  # the caller may have been cancelled
        if error is not None and not isinstance(error, ServiceError):
            log.error("work on adapters failed", exc_info=error)

    async def _load(self, load: Load, order: AdapterLoadRequest) -> LoadedAdapter:
        try:
            engine = self._serving_engine()
            await self.settle()
            source = await self._prepare(load, order)
            state = await _added(engine, source)
            adapter = self._registry.finish(
                load, state.rank, state.bytes, order.folder, pinned=order.pinned
            )
            self._changed()
            return adapter
        finally:
            self._registry.abandon(load)
            self._pinning = None
            await self._retire()
            await self._repin()

    async def _prepare(self, load: Load, order: AdapterLoadRequest) -> AdapterSource:
        """Copy the adapter that `order` names, and register its revision with the registry. Return
        the revision and the folder of the copy."""
        storage = await self._open_storage()
        folder, root = order.folder, self._root
        if not order.rooted:
            folder, root = await asyncio.to_thread(self._find, folder), None
        snapshot = await asyncio.to_thread(
            copy_adapter, folder, root, storage.folder, self._settings.max_bytes
        )
        try:
            self._registry.hold(load, snapshot.revision)
        except AdapterRefused:
            await asyncio.to_thread(storage.discard, snapshot)
            raise
        async with self._filing:
            place = await asyncio.to_thread(storage.keep, snapshot)
        revision = snapshot.revision
        self._pinning = revision if order.pinned else None
        source = AdapterSource(revision, str(place), self._is_pinned(revision))
        self._sources[revision] = source
        return source

    def _find(self, source: str) -> str:
        return find_adapter(source, self._home, self._hub)

    async def _settle(self) -> None:
        await self._retire()
        await self._repin()
        await self._sweep()

    async def _retire(self) -> None:
        if self._engine is None:
            return
        with contextlib.suppress(
            EngineFault, Unavailable
        ):  # a dead engine is updated when it is back
            for revision in self._registry.retired:
                if revision in self._registry.retired:  # an alias may name the revision again
                    await self._engine.retire_adapter(revision)

    async def _repin(self) -> None:
        """Send the engine every pin that has changed."""
        while self._engine is not None and (source := self._wrongly_pinned()) is not None:
            self._sources[source.revision] = source
            with contextlib.suppress(ServiceError):  # a dead engine is updated when it is back
                await self._engine.add_adapter(source)

    def _wrongly_pinned(self) -> AdapterSource | None:
        """Return a source whose pin has changed since it was sent to the engine, or None."""
        told = self._sources
        return next((one for one in self.sources() if one != told[one.revision]), None)

    def _is_pinned(self, revision: str) -> bool:
        """Return whether an alias pins the revision, or the current load will."""
        names = (one for one in self.adapters if one.revision == revision)
        return revision == self._pinning or any(one.pinned for one in names)

    async def _sweep(self) -> None:
        retired = self._registry.retired
        if not retired or self._engine is None:
            return
        try:
            held = {state.revision for state in await self._engine.adapters()}
        except (EngineFault, Unavailable):
            return
        gone = (retired & self._registry.retired) - held
        self._registry.freed(gone)
        storage = await self._open_storage()
        for revision in gone:
            async with self._filing:
                if revision not in self._registry.live:
                    self._sources.pop(revision, None)
                    await asyncio.to_thread(storage.drop, revision)

    def _serving_engine(self) -> AdapterEngine:
        if self._engine is None:
            raise AdapterRefused(
                "model_state_conflict", "the model is not loaded; reload it first", field="model"
            )
        return self._engine

    async def _open_storage(self) -> AdapterStorage:
        if self._storage is None:
            self._storage = asyncio.ensure_future(asyncio.to_thread(AdapterStorage, self._home))
        try:
            return await asyncio.shield(self._storage)
        except AdapterRefused:
            self._storage = None  # the home may exist next time
            raise


def local_adapter_catalog(
    settings: LoraSettings | None,
    environment: Environment,
    engine: AdapterEngine,
    live: AdapterView,
) -> AdapterCatalog | None:
    """Return the adapter catalog of an engine in this process, or None if `settings` is None.
    `live`: receives the current adapters after each change."""
    if settings is None:
        return None
    hub = hub_access_of(environment)
    catalog = AdapterCatalog(
        settings, environment.home, hub=hub, changed=lambda: live.apply(catalog.adapters)
    )
    catalog.attach(engine)
    live.apply(())
    return catalog


async def _added(engine: AdapterEngine, source: AdapterSource) -> AdapterState:
    try:
        return await engine.add_adapter(source)
    except EngineFault:
        raise AdapterRefused(
            "lora_load_task_failed", "the engine failed while it loaded the adapter"
        ) from None
    except Unavailable:
        raise AdapterRefused(
            "lora_device_load_failed", "the engine is not there to load the adapter"
        ) from None
    except ServiceError as error:  # an error that came through a socket
        code = error.code if error.code in STATUS_OF else "lora_load_task_failed"
        raise AdapterRefused(code, error.message, field=error.field) from None
