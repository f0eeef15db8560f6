"""Endpoints of `/ui/api/chats/{chat_id}/messages`: sends messages, makes, stops, edits and follows
answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from penstock.api.chats.records import (
    NEW_CHAT,
    attachment_of,
    encode_json,
    message_of,
    text_of,
    title_of,
)
from penstock.api.http.event_stream import cancel_on_disconnect
from penstock.api.http.frames import send_frames
from penstock.api.routes.ui.bodies import read_body, send_struct
from penstock.api.routes.ui.chats import chat_id_of, message_id_of
from penstock.api.schema.chats import (
    AttachmentBlock,
    Block,
    ChatMessage,
    EditedMessage,
    NewAnswer,
    NewMessage,
    Role,
    SentAttachment,
    SentText,
    TextBlock,
)
from penstock.api.services import Services
from penstock.base.errors import Conflict, InvalidRequest
from penstock.base.ids import new_id
from penstock.store.chat_records import StoredChat, StoredMessage

MAX_DEPTH: Final = 10_000
"""The number of messages in one branch."""


class SendMessage:
    """POST: adds a message of the user, and starts an answer or keeps the given one. Returns both.
    Raises InvalidRequest, also for wrong settings of the chat, and NotFound."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        asked = await read_body(services, scope, receive, NewMessage)
        chat_id = chat_id_of(scope)
        chat = await services.store.chats.get(chat_id)
        blocks = await _sent_blocks(services, asked.blocks)
        sent = _ended_message(chat_id, asked.parent, "user", blocks)
        if asked.answer is None:
            answer = await self._start(chat, sent, blocks)
        else:
            answer = await self._keep(sent, blocks, await _sent_blocks(services, asked.answer))
        await _name_chat(services, chat, blocks)
        await send_struct({"user": message_of(sent), "answer": message_of(answer)}, send)

    async def _start(
        self, chat: StoredChat, sent: StoredMessage, blocks: list[Block]
    ) -> StoredMessage:
        services = self._services
        branch = await _branch(services, chat.id, sent.parent)
        settings: dict[str, Any] = orjson.loads(chat.settings)
        request = await services.answers.request(settings, [*branch, message_of(sent)], chat.id)
        answer = services.answers.new_answer(chat.id, sent.id, sent.created_at)
        rows = [(sent, text_of(blocks)), (answer, "")]
        await services.store.chats.add_messages(chat.id, rows, _attached(blocks))
        services.answers.start(answer, request)
        return answer

    async def _keep(
        self, sent: StoredMessage, blocks: list[Block], answered: list[Block]
    ) -> StoredMessage:
        answer = _ended_message(sent.chat_id, sent.id, "assistant", answered)
        rows = [(sent, text_of(blocks)), (answer, text_of(answered))]
        attached = [*_attached(blocks), *_attached(answered)]
        await self._services.store.chats.add_messages(sent.chat_id, rows, attached)
        return answer


class AnswerAgain:
    """POST: writes another answer to a message of the user, or with `continue` goes on writing an
    answer that has ended. Returns the answer."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        asked = await read_body(services, scope, receive, NewAnswer)
        chat_id, id = chat_id_of(scope), message_id_of(scope)
        chat = await services.store.chats.get(chat_id)
        stored = await services.store.chats.message(chat_id, id)
        wanted = "assistant" if asked.continue_ else "user"
        if stored.role != wanted:
            act = "continued" if asked.continue_ else "answered"
            raise InvalidRequest(f"only a message of the {wanted} can be {act}")
        branch = await _branch(services, chat_id, id)
        request = await services.answers.request(orjson.loads(chat.settings), branch, chat_id)
        if asked.continue_:
            answer = await services.answers.restart(stored, request)
        else:
            answer = services.answers.new_answer(chat_id, id, int(time.time()))
            await services.store.chats.add_messages(chat_id, [(answer, "")])
            services.answers.start(answer, request)
        await send_struct(message_of(answer), send)


class EditMessage:
    """PATCH: replaces the text of an answer and returns the answer. Reasoning, tool calls and files
    before the text stay. Raises Conflict while the answer is being written."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        asked = await read_body(services, scope, receive, EditedMessage)
        chat_id, id = chat_id_of(scope), message_id_of(scope)
        stored = await services.store.chats.message(chat_id, id)
        if stored.role != "assistant":
            raise InvalidRequest("only an answer can be edited; send a message on a new branch")
        if stored.status == "running":
            raise Conflict("stop the answer before you edit it", code="answer_running")
        kept = [b for b in message_of(stored).blocks if not isinstance(b, TextBlock)]
        blocks = encode_json([*kept, TextBlock(asked.text)])
        edited = await services.store.chats.replace_blocks(chat_id, id, blocks, asked.text)
        await send_struct(message_of(edited), send)


class StopAnswer:
    """POST: stops an answer and returns it. An answer that has ended is returned unchanged."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stopped = await self._services.answers.stop(chat_id_of(scope), message_id_of(scope))
        await send_struct(message_of(stopped), send)


class FollowMessage:
    """GET: streams a message as server-sent events until it has ended. Any number of clients may
    follow it, at any time."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chat_id, id = chat_id_of(scope), message_id_of(scope)
        await self._services.store.chats.message(chat_id, id)  # 404 before the stream starts
        frames = self._services.answers.follow(chat_id, id)
        await cancel_on_disconnect(
            send_frames(frames, self._services.settings, scope, send), receive
        )


async def _sent_blocks(
    services: Services, sent: Sequence[SentText | SentAttachment]
) -> list[Block]:
    blocks: list[Block] = []
    for block in sent:
        if isinstance(block, SentAttachment):
            stored = await services.store.chat_attachments.get(block.id)
            blocks.append(AttachmentBlock(attachment_of(stored)))
        else:
            blocks.append(TextBlock(block.text))
    return blocks


def _attached(blocks: Sequence[Block]) -> list[str]:
    """Return the ids of the attachments among the blocks."""
    return [block.attachment.id for block in blocks if isinstance(block, AttachmentBlock)]


def _ended_message(
    chat_id: str, parent: str | None, role: Role, blocks: list[Block]
) -> StoredMessage:
    return StoredMessage(
        id=new_id("msg_"),
        chat_id=chat_id,
        parent=parent,
        role=role,
        created_at=int(time.time()),
        status="done",
        blocks=encode_json(blocks),
    )


async def _branch(services: Services, chat_id: str, tail: str | None) -> list[ChatMessage]:
    """Return the messages from the root to `tail`. Raises NotFound if `tail` is unknown, and
    InvalidRequest if the branch is too long."""
    if tail is None:
        return []
    await services.store.chats.message(chat_id, tail)
    known: Mapping[str, StoredMessage] = {
        message.id: message for message in await services.store.chats.messages(chat_id)
    }
    branch: list[ChatMessage] = []
    id = tail
    while True:
        message = known[id]
        branch.append(message_of(message))
        if message.parent is None:
            return branch[::-1]
        if len(branch) == MAX_DEPTH:
            raise InvalidRequest(f"a branch may have at most {MAX_DEPTH} messages")
        id = message.parent


async def _name_chat(services: Services, chat: StoredChat, blocks: list[Block]) -> None:
    """Give a new chat a title from its first message."""
    if chat.title != NEW_CHAT or chat.tail is not None:
        return
    names = [block.attachment.name for block in blocks if isinstance(block, AttachmentBlock)]
    title = title_of(text_of(blocks) or ", ".join(names))
    await services.store.chats.update(chat.id, {"title": title})
