"""Converts the rows of chats into the JSON types of the page, and back."""

from __future__ import annotations

from typing import Final

import msgspec
import orjson

from penstock.api.schema.chats import (
    Attachment,
    Block,
    Chat,
    ChatMessage,
    MessageInfo,
    TextBlock,
)
from penstock.store.chat_records import StoredAttachment, StoredChat, StoredMessage

ATTACHMENTS_PATH: Final = "/ui/api/attachments"
NEW_CHAT: Final = "New chat"
TITLE_CHARS: Final = 60

_BLOCKS: Final = msgspec.json.Decoder(list[Block])
_INFO: Final = msgspec.json.Decoder(MessageInfo)
encode_json: Final = msgspec.json.Encoder().encode


def chat_of(stored: StoredChat) -> Chat:
    """Return a chat for the page."""
    return Chat(
        id=stored.id,
        title=stored.title,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
        tail=stored.tail,
        settings=orjson.loads(stored.settings),
    )


def message_of(stored: StoredMessage) -> ChatMessage:
    """Return a message for the page."""
    return ChatMessage(
        id=stored.id,
        chat_id=stored.chat_id,
        parent=stored.parent,
        role=stored.role,
        created_at=stored.created_at,
        status=stored.status,
        blocks=_BLOCKS.decode(stored.blocks),
        info=_INFO.decode(stored.info),
    )


def attachment_of(stored: StoredAttachment) -> Attachment:
    """Return an attachment for the page."""
    return Attachment(
        id=stored.id,
        name=stored.name,
        mime_type=stored.mime_type,
        bytes=stored.size_bytes,
        url=f"{ATTACHMENTS_PATH}/{stored.id}",
    )


def text_of(blocks: list[Block]) -> str:
    """Return the texts of blocks, for searches and titles."""
    return "\n\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def title_of(text: str) -> str:
    """Return a title for a chat that begins with `text`: its first words on one line."""
    line = " ".join(text.split())
    if len(line) <= TITLE_CHARS:
        return line or NEW_CHAT
    words = line[:TITLE_CHARS].rsplit(" ", 1)[0]
    return f"{words}..."
