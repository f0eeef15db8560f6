"""Endpoints that export a chat as one JSON document, and import it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Annotated, Any, Final, Literal

import msgspec
import orjson
from msgspec import Meta, Struct
from starlette.types import Receive, Scope, Send

from penstock.api.chats.records import attachment_of, chat_of, encode_json, message_of, text_of
from penstock.api.routes.ui.bodies import read_body, send_struct
from penstock.api.routes.ui.chats import chat_id_of, new_chat
from penstock.api.schema.chats import (
    Attachment,
    AttachmentBlock,
    Block,
    FileBlock,
    MessageInfo,
    Title,
    ToolBlock,
)
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest
from penstock.base.ids import new_id
from penstock.store.chat_records import StoredChat, StoredMessage

FORMAT: Final = "penstock-chat-1"
MAX_MESSAGES: Final = 100_000


class PortableMessage(Struct, kw_only=True):
    """A message in an exported chat. Ids are those of the exported chat."""

    id: str
    parent: str | None
    role: Literal["user", "assistant"]
    created_at: int
    blocks: list[Block]
    info: MessageInfo


class PortableAttachment(Struct, kw_only=True):
    """A file in an exported chat. `data`: base64."""

    id: str
    name: str
    mime_type: str
    data: str


class PortableChat(Struct, kw_only=True):
    """An exported chat."""

    format: Literal["penstock-chat-1"]
    title: Title
    settings: dict[str, Any]
    tail: str | None
    messages: Annotated[list[PortableMessage], Meta(max_length=MAX_MESSAGES)]
    attachments: list[PortableAttachment] = []


class ExportChat:
    """GET: returns a chat with its attachments as a JSON file. Raises NotFound."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        store = self._services.store
        chat = await store.chats.get(chat_id_of(scope))
        messages = await store.chats.messages(chat.id)
        attachments = []
        for stored in await store.chat_attachments.of_chat(chat.id):
            data = b64encode(await store.chat_attachments.read(stored.id)).decode()
            attachments.append(
                PortableAttachment(
                    id=stored.id, name=stored.name, mime_type=stored.mime_type, data=data
                )
            )
        whole = PortableChat(
            format="penstock-chat-1",
            title=chat.title,
            settings=orjson.loads(chat.settings),
            tail=chat.tail,
            messages=[_portable(message) for message in messages],
            attachments=attachments,
        )
        await send_struct(whole, send)


class ImportChat:
    """POST: stores an exported chat under new ids and returns it. Raises InvalidRequest."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        asked = await read_body(services, scope, receive, PortableChat)
        chat = new_chat(asked.title, asked.settings)
        ids = _new_ids(asked)
        contents = [_content(attachment) for attachment in asked.attachments]
        await services.store.chats.create(chat, [])
        kept: dict[str, Attachment] = {}
        for attachment, data in zip(asked.attachments, contents, strict=True):
            stored = await services.store.chat_attachments.create(
                attachment.name, attachment.mime_type, data, chat.id
            )
            kept[attachment.id] = attachment_of(stored)
        messages = [_imported(message, chat, ids, kept) for message in asked.messages]
        if messages:
            texts = [text_of(message.blocks) for message in asked.messages]
            rows = list(zip(messages, texts, strict=True))
            await services.store.chats.add_messages(chat.id, rows)
        if asked.tail is not None:
            await services.store.chats.update(chat.id, {"tail": ids[asked.tail]})
        await send_struct(chat_of(await services.store.chats.get(chat.id)), send)


def _portable(stored: StoredMessage) -> PortableMessage:
    message = message_of(stored)
    return PortableMessage(
        id=message.id,
        parent=message.parent,
        role=message.role,
        created_at=message.created_at,
        blocks=message.blocks,
        info=message.info,
    )


def _new_ids(asked: PortableChat) -> dict[str, str]:
    """Return old message id -> new id. Raises InvalidRequest unless each parent precedes its
    children and the tail exists."""
    ids: dict[str, str] = {}
    for index, message in enumerate(asked.messages):
        field = f"messages[{index}]"
        if message.id in ids:
            raise InvalidRequest(f"`{field}.id` is given twice", field=f"{field}.id")
        if message.parent is not None and message.parent not in ids:
            raise InvalidRequest(
                f"`{field}.parent` must be the id of an earlier message", field=f"{field}.parent"
            )
        ids[message.id] = new_id("msg_")
    if asked.tail is not None and asked.tail not in ids:
        raise InvalidRequest("`tail` must be the id of a message", field="tail")
    return ids


def _content(attachment: PortableAttachment) -> bytes:
    try:
        return b64decode(attachment.data, validate=True)
    except Base64Error:
        raise InvalidRequest("`attachments` must have base64 data", field="attachments") from None


def _imported(
    message: PortableMessage, chat: StoredChat, ids: dict[str, str], kept: dict[str, Attachment]
) -> StoredMessage:
    blocks = [_with_attachments(block, kept) for block in message.blocks]
    return StoredMessage(
        id=ids[message.id],
        chat_id=chat.id,
        parent=None if message.parent is None else ids[message.parent],
        role=message.role,
        created_at=message.created_at,
        status="done",
        blocks=encode_json(blocks),
        info=encode_json(message.info),
    )


def _with_attachments(block: Block, kept: dict[str, Attachment]) -> Block:
    """Return the block with the imported attachments. Raises InvalidRequest for an attachment that
    the document does not have, because the block could otherwise show a file of another chat."""
    match block:
        case AttachmentBlock(attachment=attachment):
            return AttachmentBlock(_kept(attachment, kept))
        case FileBlock(attachment=attachment) if attachment is not None:
            return msgspec.structs.replace(block, attachment=_kept(attachment, kept))
        case ToolBlock(images=images):
            shown = [_kept(image, kept) for image in images]
            return msgspec.structs.replace(block, images=shown)
        case _:
            return block


def _kept(attachment: Attachment, kept: dict[str, Attachment]) -> Attachment:
    if attachment.id not in kept:
        raise InvalidRequest("a message names an attachment that is missing", field="attachments")
    return kept[attachment.id]
