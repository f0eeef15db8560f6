"""Endpoints of `/ui/api/chats`: lists, searches, changes and deletes chats."""

from __future__ import annotations

import time
from typing import Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from penstock.api.chats.records import NEW_CHAT, chat_of, message_of
from penstock.api.routes.answers import query_of, send_value
from penstock.api.routes.ui.bodies import read_body, send_struct
from penstock.api.schema.chats import ChatChange, NewChat
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest
from penstock.base.ids import new_id
from penstock.store.chat_records import StoredChat
from penstock.store.errors import shorten

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 200
MAX_QUERY_CHARS: Final = 200
CHAT_PREFIX: Final = "chat_"


class ListChats:
    """GET: returns a page of chats, the last changed first. `q`: only chats that contain this
    text."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = query_of(scope)
        limit = _limit(query.get("limit"))
        wanted = query.get("q", "").strip()[:MAX_QUERY_CHARS]
        chats = self._services.store.chats
        hits, more = await chats.search(wanted, limit=limit, before=query.get("before"))
        await send_struct({"chats": hits, "more": more}, send)


class CreateChat:
    """POST: creates an empty chat. Raises InvalidRequest for wrong settings."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = await read_body(self._services, scope, receive, NewChat)
        settings = asked.settings or {}
        self._services.answers.check(settings)
        chat = new_chat(asked.title or NEW_CHAT, settings)
        await self._services.store.chats.create(chat, [])
        await send_struct(chat_of(chat), send)


class GetChat:
    """GET: returns a chat and all its messages, in the order in which they were added."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id = chat_id_of(scope)
        chat = await self._services.store.chats.get(id)
        messages = await self._services.store.chats.messages(id)
        shown = [message_of(message) for message in messages]
        await send_struct({"chat": chat_of(chat), "messages": shown}, send)


class ChangeChat:
    """PATCH: changes the title, the settings or the shown branch of a chat, and returns it. Raises
    NotFound and InvalidRequest."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = await read_body(self._services, scope, receive, ChatChange)
        changes: dict[str, Any] = {}
        if asked.title is not None:
            changes["title"] = asked.title
        if asked.settings is not None:
            self._services.answers.check(asked.settings)
            changes["settings"] = orjson.dumps(asked.settings)
        if asked.tail is not None:
            changes["tail"] = asked.tail
        chat = await self._services.store.chats.update(chat_id_of(scope), changes)
        await send_struct(chat_of(chat), send)


class DeleteChat:
    """DELETE: deletes a chat with its messages and attachments, and stops its answers. A chat that
    does not exist is no error."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id = chat_id_of(scope)
        services = self._services
        await services.answers.stop_all_of(id)
        bodies = await services.store.chats.delete(id)
        if bodies:
            await services.store.chat_attachments.delete_bodies(bodies)
        if services.tools is not None:
            await services.tools.forget_session(id)
        await send_value({"id": id, "deleted": bodies is not None}, send)


def new_chat(title: str, settings: dict[str, Any]) -> StoredChat:
    """Return a chat with a new id and without messages."""
    now = int(time.time())
    return StoredChat(
        id=new_id(CHAT_PREFIX),
        title=title,
        created_at=now,
        updated_at=now,
        settings=orjson.dumps(settings),
    )


def chat_id_of(scope: Scope) -> str:
    """Return the id of the chat in the path."""
    id: str = scope["path_params"]["chat_id"]
    return id


def message_id_of(scope: Scope) -> str:
    """Return the id of the message in the path."""
    id: str = scope["path_params"]["message_id"]
    return id


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:4]) <= MAX_LIMIT):
        raise InvalidRequest(
            f"`limit` must be an integer from 1 to {MAX_LIMIT}, not {shorten(text)!r}",
            field="limit",
        )
    return int(text)
