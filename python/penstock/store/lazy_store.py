"""A store that opens while the server already serves. Calls wait until it is open. `probe` decides
when this is possible."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from penstock.config import SettingsError, StoreSettings
from penstock.store.errors import StorageUnavailable

if TYPE_CHECKING:
    from penstock.store.approvals import Approvals
    from penstock.store.chat_attachments import ChatAttachments
    from penstock.store.chats import Chats
    from penstock.store.files import Files
    from penstock.store.response_events import ResponseEvents
    from penstock.store.responses import Responses
    from penstock.store.sessions import LeasedSession, Sessions
    from penstock.store.skills import Skills
    from penstock.store.store import Store


class LazyStore:
    """A `Store` that is opened when it is first used: by `open`, or by the first call of a method
    of one of its members.

    If the store cannot be opened, the methods of the members raise StorageUnavailable, and the next
    call tries again.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._opening: asyncio.Future[Store] | None = None
        self.responses = cast("Responses", _Part(self._opened, "responses"))
        self.response_events = cast("ResponseEvents", _Part(self._opened, "response_events"))
        self.files = cast("Files", _Part(self._opened, "files"))
        self.sessions = cast("Sessions", _SessionsPart(self._opened, "sessions"))
        self.skills = cast("Skills", _Part(self._opened, "skills"))
        self.approvals = cast("Approvals", _Part(self._opened, "approvals"))
        self.chats = cast("Chats", _Part(self._opened, "chats"))
        self.chat_attachments = cast("ChatAttachments", _Part(self._opened, "chat_attachments"))

    async def open(self) -> None:
        """Open the store and wait until it is open. Raises SettingsError if the store cannot be
        opened."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(_open(self._settings))
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except SettingsError:
            if self._opening is opening:
                self._opening = None
            raise

    async def close(self) -> None:
        """Close the store after pending writes. If the store is still being opened, wait for that
        first, because the opening cannot be interrupted."""
        if self._opening is not None:
            with contextlib.suppress(SettingsError):
                await (await self._opening).close()

    async def _opened(self) -> Store:
        try:
            await self.open()
        except SettingsError:
            raise StorageUnavailable from None
        assert self._opening is not None
        return self._opening.result()


class _Part:
    """A proxy of one member of the store, such as `files`. Its coroutine methods open the store
    first."""

    def __init__(self, opened: Callable[[], Awaitable[Store]], name: str) -> None:
        self._opened = opened
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            part = getattr(await self._opened(), self._name)
            return await getattr(part, method)(*arguments, **named)

        return call


class _SessionsPart(_Part):
    @asynccontextmanager
    async def lease(self, id: str) -> AsyncIterator[LeasedSession]:
        async with (await self._opened()).sessions.lease(id) as session:
            yield session


async def _open(settings: StoreSettings) -> Store:
    return await (await asyncio.to_thread(_import_store)).open(settings)


def _import_store() -> type[Store]:
    from penstock.store.store import Store

    return Store
