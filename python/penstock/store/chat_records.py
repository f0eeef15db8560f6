"""The records of the chats of the web page, as frozen structs. All times are Unix seconds."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

MessageStatus = Literal["running", "done", "stopped", "failed"]
RUNNING: Final = "running"


class StoredChat(msgspec.Struct, frozen=True, kw_only=True):
    """A chat: a tree of messages.

    `tail`: the id of the last message of the branch that is shown; None: no messages.
    `settings`: JSON of the request fields that the chat's answers use.
    """

    id: str
    title: str
    created_at: int
    updated_at: int
    settings: bytes
    tail: str | None = None


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat.

    `parent`: the id of the message before it; None: the first of its branch.
    `blocks`: JSON of the message's blocks.
    `info`: JSON of the message's counts and times.
    `owner`: the id of the API process that writes the answer; "" for a message of the user.
    `heartbeat_at`: the time at which the owner was last alive.
    `stop_requested`: a client asked the owner to stop.
    """

    id: str
    chat_id: str
    role: Literal["user", "assistant"]
    created_at: int
    status: MessageStatus
    blocks: bytes
    info: bytes = b"{}"
    parent: str | None = None
    owner: str = ""
    heartbeat_at: int = 0
    stop_requested: bool = False


class ChatHit(msgspec.Struct, frozen=True, kw_only=True):
    """A chat in a list. `snippet`: text around a search hit, or the beginning of the chat."""

    id: str
    title: str
    updated_at: int
    snippet: str


class StoredAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a file in a chat. `chat_id`: None until a message uses it."""

    id: str
    name: str
    mime_type: str
    size_bytes: int
    created_at: int
    chat_id: str | None = None
