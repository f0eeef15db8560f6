"""Checks exported chats before they are used."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error

from penstock.api.schema.portable_chats import PortableAttachment, PortableChat
from penstock.base.errors import InvalidRequest


def check_tree(chat: PortableChat) -> None:
    """Raise InvalidRequest unless the ids of the messages differ, each parent precedes its
    children, and the tail exists."""
    known: set[str] = set()
    for index, message in enumerate(chat.messages):
        field = f"messages[{index}]"
        if message.id in known:
            raise InvalidRequest(f"`{field}.id` is given twice", field=f"{field}.id")
        if message.parent is not None and message.parent not in known:
            raise InvalidRequest(
                f"`{field}.parent` must be the id of an earlier message", field=f"{field}.parent"
            )
        known.add(message.id)
    if chat.tail is not None and chat.tail not in known:
        raise InvalidRequest("`tail` must be the id of a message", field="tail")


def content_of(attachment: PortableAttachment) -> bytes:
    """Return the content of an attachment. Raises InvalidRequest unless it is base64."""
    try:
        return b64decode(attachment.data, validate=True)
    except Base64Error:
        raise InvalidRequest("`attachments` must have base64 data", field="attachments") from None
