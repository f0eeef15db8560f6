"""The JSON document of an exported chat, which the web page and the terminal write and read."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from penstock.api.schema.chats import Block, MessageInfo, Title

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
