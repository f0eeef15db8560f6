"""Runs within a session: the stored conversation comes first, and the answer is stored with it.

A session is found by its id alone; an unknown id starts a new one. One run at a time.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Protocol

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    Event,
    GenerateRequest,
    Message,
    Part,
    PartEnded,
    RunEnded,
    Text,
    ToolCall,
)

log = logging.getLogger(__name__)

Answer = Callable[[GenerateRequest], AsyncGenerator[Event, None]]


class SessionLease(Protocol):
    """The part of `store.sessions.LeasedSession` that is used here."""

    messages: tuple[Message, ...]

    async def save(self, messages: tuple[Message, ...]) -> bool: ...


class SessionStore(Protocol):
    """The method of `store.sessions.Sessions` that is used here."""

    def lease(self, id: str) -> AbstractAsyncContextManager[SessionLease]: ...


async def run_in_session(
    request: GenerateRequest, sessions: SessionStore, answer: Answer
) -> AsyncGenerator[Event, None]:
    """Yield the events of `answer` to the whole conversation of `request.session`.

    The conversation and its (first) answer are stored before RunEnded; nothing is stored of a run
    that fails, is cancelled or is closed early. Raises InvalidRequest for a request without
    messages, SessionBusy (409) while another run of the session goes on, and other errors of the
    store.
    """
    if request.messages is None or request.session is None:
        raise InvalidRequest(
            "`session_id` needs `messages`: an array of messages", field="session_id"
        )
    async with sessions.lease(request.session) as held:
        conversation = continued(held.messages, request.messages)
        said: list[Part] = []
        whole = msgspec.structs.replace(request, messages=conversation)
        async with aclosing(answer(whole)) as events:
            async for event in events:
                match event:
                    case PartEnded(choice=0):
                        said.append(event.value)
                    case RunEnded(status="completed" | "incomplete"):
                        reply = Message("assistant", _whole(request.answer_prefix, said))
                        if not await held.save((*conversation, reply)):
                            log.info("a session was deleted or replaced while it was answered")
                    case _:
                        pass
                yield event


def _whole(answer_prefix: str, said: list[Part]) -> tuple[Part, ...]:
    """Return the parts of an answer with its prefix, without unfinished calls."""
    said = [part for part in said if not isinstance(part, ToolCall) or part.whole] or [Text("")]
    if not answer_prefix:
        return tuple(said)
    for index, part in enumerate(said):
        if isinstance(part, Text):
            text = msgspec.structs.replace(part, text=answer_prefix + part.text)
            return (*said[:index], text, *said[index + 1 :])
    return (Text(answer_prefix), *said)


def continued(stored: tuple[Message, ...], sent: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the conversation that a request continues.

    Sent messages follow stored ones. But most clients send the whole conversation each time,
    without the messages that they are not shown: if the sent messages contain answers and begin as
    the stored conversation does, they replace it from where the two differ. Sent system messages
    replace the stored ones.
    """
    system, sent = _split(sent)
    stored_system, stored = _split(stored)
    system = system or stored_system
    if not any(message.role == "assistant" for message in sent):
        return (*system, *stored, *sent)
    kept, taken = _shared(stored, sent)
    if taken == 0:
        return (*system, *stored, *sent)
    return (*system, *stored[:kept], *sent[taken:])


def _split(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return (the system messages at the start, the rest)."""
    count = 0
    while count < len(messages) and messages[count].role in ("system", "developer"):
        count += 1
    return messages[:count], messages[count:]


def _shared(stored: tuple[Message, ...], sent: tuple[Message, ...]) -> tuple[int, int]:
    """Count the messages of each side that are the same conversation from its start; stored tool
    calls and their results may be missing on the sent side."""
    kept, taken = 0, 0
    for index, message in enumerate(stored):
        if taken < len(sent) and _seen(message) == _seen(sent[taken]):
            kept, taken = index + 1, taken + 1
        elif not _hidden(message):
            break
    return kept, taken


def _hidden(message: Message) -> bool:
    """Whether a client may not have been shown a message: a tool result, or an answer of calls
    only."""
    return message.role == "tool" or (message.role == "assistant" and not _text(message))


def _seen(message: Message) -> tuple[str, str]:
    """Return the key by which two messages are compared."""
    if message.role == "tool":
        return "tool", "".join(getattr(part, "call_id", "") for part in message.parts)
    calls = "".join(getattr(part, "id", "") for part in message.parts)
    return message.role, _text(message) or calls


def _text(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, Text)).strip()
