"""Endpoints that export a chat as one JSON document, and import it."""

from __future__ import annotations

from base64 import b64encode

import msgspec
import orjson
from starlette.types import Receive, Scope, Send

from penstock.api.chats.portable import check_tree, content_of
from penstock.api.chats.records import attachment_of, chat_of, encode_json, message_of, text_of
from penstock.api.routes.ui.bodies import read_body, send_struct
from penstock.api.routes.ui.chats import chat_id_of, new_chat
from penstock.api.schema.chats import (
    Attachment,
    AttachmentBlock,
    Block,
    FileBlock,
    ToolBlock,
)
from penstock.api.schema.portable_chats import PortableAttachment, PortableChat, PortableMessage
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest
from penstock.base.ids import new_id
from penstock.store.chat_records import StoredChat, StoredMessage


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
        check_tree(asked)
        ids = {message.id: new_id("msg_") for message in asked.messages}
        contents = [content_of(attachment) for attachment in asked.attachments]
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
