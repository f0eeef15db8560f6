"""The conversation of a terminal chat: its messages, settings and files. It knows neither the
terminal nor the model."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.api.chats.answer_request import with_messages
from penstock.api.chats.records import ATTACHMENTS_PATH
from penstock.api.schema.chats import (
    Attachment,
    AttachmentBlock,
    Block,
    MessageInfo,
    TextBlock,
    ToolBlock,
)
from penstock.api.schema.portable_chats import PortableMessage
from penstock.base.ids import new_id
from penstock.dialog import GenerateRequest, Message


@dataclass(frozen=True)
class Turn:
    """The input of one answer.

    `settings`: fields of a chat completion request, `system` and `tools`.
    `messages`: the whole conversation with the system message.
    `container`: the id of the container that keeps the state of tools.
    """

    settings: Mapping[str, Any]
    messages: tuple[Message, ...]
    container: str


class Conversation:
    """A tree of messages like that of the web page's chats. The terminal shows one branch.

    `settings`: fields of a chat completion request, `system` and `tools`. An absent field has the
    model's default.
    `messages`: all messages by id, in the order of creation.
    `tail`: the id of the last message of the branch.
    `files`: the attachments with their contents, by id.
    `waiting`: blocks that go with the next question.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings: dict[str, Any] = dict(settings or {})
        self.messages: dict[str, PortableMessage] = {}
        self.tail: str | None = None
        self.files: dict[str, tuple[Attachment, bytes]] = {}
        self.waiting: list[Block] = []
        self._container = new_id("cntr_")

    @property
    def branch(self) -> list[PortableMessage]:
        """The messages from the root to the tail."""
        found: list[PortableMessage] = []
        id = self.tail
        while id is not None:
            found.append(self.messages[id])
            id = found[-1].parent
        return found[::-1]

    @property
    def is_asked(self) -> bool:
        """Whether the last message is a question without an answer."""
        return self.tail is not None and self.messages[self.tail].role == "user"

    def ask(self, text: str) -> None:
        """Append a question of the user with the blocks that wait for it. It replaces a question
        that got no answer."""
        if self.is_asked:
            self.undo()
        self._append("user", [*self.waiting, TextBlock(text)], MessageInfo())
        self.waiting = []

    def keep(self, blocks: list[Block], info: MessageInfo) -> None:
        """Append an answer, which may have been interrupted. An answer without text and calls of
        tools is not kept."""
        if any(isinstance(block, ToolBlock) or _has_text(block) for block in blocks):
            self._append("assistant", blocks, info)

    def undo(self) -> bool:
        """Remove the last question and its answer from the branch. Returns False if there is
        none."""
        last = self.last_question
        if last is None:
            return False
        self.tail = last.parent
        self._renew_container()
        return True

    def take_back_answer(self) -> bool:
        """Make the last question the end of the branch, so that it can be answered again. Returns
        False if there is none."""
        last = self.last_question
        if last is None:
            return False
        self.tail = last.id
        self._renew_container()
        return True

    @property
    def last_question(self) -> PortableMessage | None:
        """The last message of the user."""
        return next((one for one in reversed(self.branch) if one.role == "user"), None)

    @property
    def last_answer(self) -> PortableMessage | None:
        """The last answer of the model."""
        return next((one for one in reversed(self.branch) if one.role == "assistant"), None)

    def clear(self) -> None:
        """Start a new conversation with the same settings."""
        self.fill((), None, {})

    def fill(
        self,
        messages: Iterable[PortableMessage],
        tail: str | None,
        files: Mapping[str, tuple[Attachment, bytes]],
    ) -> None:
        """Replace all messages and files."""
        self.messages = {message.id: message for message in messages}
        self.tail = tail
        self.files = dict(files)
        self.waiting = []
        self._container = new_id("cntr_")

    async def turn(self) -> Turn:
        """Return the input of the answer to the last question."""
        branch = [(message.role, message.blocks) for message in self.branch]
        request = await with_messages(
            GenerateRequest(), self.settings.get("system"), branch, self._read
        )
        return Turn(dict(self.settings), request.messages or (), self._container)

    async def keep_file(self, name: str, mime_type: str, data: bytes) -> Attachment:
        """Store a file in the conversation and return its attachment."""
        id = new_id("att_")
        url = f"{ATTACHMENTS_PATH}/{id}"
        attachment = Attachment(id=id, name=name, mime_type=mime_type, bytes=len(data), url=url)
        self.files[id] = attachment, data
        return attachment

    async def attach(self, name: str, mime_type: str, data: bytes) -> None:
        """Let a file go with the next question."""
        self.waiting.append(AttachmentBlock(await self.keep_file(name, mime_type, data)))

    async def _read(self, id: str) -> bytes:
        return self.files[id][1]

    def _append(self, role: Any, blocks: list[Block], info: MessageInfo) -> None:
        message = PortableMessage(
            id=new_id("msg_"),
            parent=self.tail,
            role=role,
            created_at=int(time.time()),
            blocks=blocks,
            info=info,
        )
        self.messages[message.id] = message
        self.tail = message.id

    def _renew_container(self) -> None:
        """Use a new container if the branch has no answer: a server would continue the session of
        the old one."""
        if self.last_answer is None:
            self._container = new_id("cntr_")


def _has_text(block: Block) -> bool:
    return isinstance(block, TextBlock) and bool(block.text)
