"""Saves a conversation as a JSON document that the web page can import, and loads one."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Final

import msgspec

from penstock.api.chats.portable import check_tree, content_of
from penstock.api.chats.records import text_of, title_of
from penstock.api.schema.chats import Attachment
from penstock.api.schema.portable_chats import PortableAttachment, PortableChat
from penstock.base.errors import InvalidRequest
from penstock.cli.chat.chat_settings import check_settings
from penstock.cli.chat.conversation import Conversation

SUFFIX: Final = ".json"


def document_of(conversation: Conversation) -> PortableChat:
    """Return the document of a conversation, with all its branches and files."""
    first = next(iter(conversation.branch), None)
    return PortableChat(
        format="penstock-chat-1",
        title=title_of("" if first is None else text_of(first.blocks)),
        settings=conversation.settings,
        tail=conversation.tail,
        messages=list(conversation.messages.values()),
        attachments=[
            PortableAttachment(
                id=file.id, name=file.name, mime_type=file.mime_type, data=b64encode(data).decode()
            )
            for file, data in conversation.files.values()
        ],
    )


def save_chat(conversation: Conversation, path: Path) -> Path:
    """Write the document of a conversation and return its path, which ends with `.json`. Replaces
    another chat, but no other file. Raises InvalidRequest and OSError."""
    path = path if path.suffix else path.with_name(path.name + SUFFIX)
    if path.exists() and not _is_chat(path):
        raise InvalidRequest(f"{path.name} exists and is not a chat; choose another name")
    data = msgspec.json.format(msgspec.json.encode(document_of(conversation)), indent=1)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
    return path


def load_chat(conversation: Conversation, path: Path) -> PortableChat:
    """Replace a conversation and its settings by a saved chat, and return the document. On an error
    the conversation does not change. Raises InvalidRequest and OSError."""
    if not path.exists() and not path.suffix:
        path = path.with_name(path.name + SUFFIX)
    try:
        chat = msgspec.json.decode(path.read_bytes(), type=PortableChat)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{path.name} is not a saved chat: {error}") from None
    check_tree(chat)
    check_settings(chat.settings)
    files = {
        one.id: (
            Attachment(one.id, one.name, one.mime_type, len(data), ""),
            data,
        )
        for one in chat.attachments
        for data in [content_of(one)]
    }
    _check_files(chat, set(files))
    conversation.fill(chat.messages, chat.tail, files)
    conversation.settings = dict(chat.settings)
    return chat


def _is_chat(path: Path) -> bool:
    try:
        msgspec.json.decode(path.read_bytes(), type=PortableChat)
    except (msgspec.MsgspecError, OSError):
        return False
    return True


def _check_files(chat: PortableChat, known: set[str]) -> None:
    """Raise InvalidRequest if a message of the user names a file that the document lacks."""
    for message in chat.messages:
        for block in message.blocks:
            attached: Attachment | None = getattr(block, "attachment", None)
            if attached is not None and attached.id not in known:
                raise InvalidRequest(f"the saved chat lacks the content of {attached.name!r}")
