"""Runs requests in a session: continues the stored conversation and stores the answer.

A session is identified by its id alone. An unknown id starts a new session. A session executes one
run at a time.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Protocol

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    Audio,
    Event,
    GenerateRequest,
    Image,
    Message,
    Part,
    PartEnded,
    RunEnded,
    Text,
    ToolCall,
    ToolCompleted,
    ToolRun,
    Video,
)
from penstock.dialog.transcript import answer_messages

log = logging.getLogger(__name__)

Answer = Callable[[GenerateRequest], AsyncGenerator[Event, None]]


class SessionLease(Protocol):
    """The members of `store.sessions.LeasedSession` that this module uses."""

    messages: tuple[Message, ...]

    async def save(self, messages: tuple[Message, ...]) -> bool: ...


class SessionStore(Protocol):
    """The method of `store.sessions.Sessions` that this module uses."""

    def lease(self, id: str) -> AbstractAsyncContextManager[SessionLease]: ...


async def run_in_session(
    request: GenerateRequest, sessions: SessionStore, answer: Answer
) -> AsyncGenerator[Event, None]:
    """Yield the events of the answer to the whole conversation of `request.session`. `answer`:
    generates the answer to a request.

    The conversation and its first choice are stored before RunEnded is yielded, but not if the run
    fails, is cancelled or is closed early. Raises InvalidRequest for a request without messages,
    SessionBusy (409) during another run of the session, and other errors of the store.
    """
    if request.messages is None or request.session is None:
        raise InvalidRequest(
            "`session_id` needs `messages`: an array of messages", field="session_id"
        )
    async with sessions.lease(request.session) as held:
        conversation = continued(held.messages, request.messages)
        parts: dict[int, Part | ToolRun] = {}
        whole = msgspec.structs.replace(request, messages=conversation)
        async with aclosing(answer(whole)) as events:
            async for event in events:
                match event:
                    case PartEnded(choice=0):
                        parts[event.part] = event.value
                    case ToolCompleted(choice=0):
                        parts[event.part] = event.run
                    case RunEnded(status="completed" | "incomplete"):
                        reply = _reply(request.answer_prefix, [parts[i] for i in sorted(parts)])
                        if not await held.save((*conversation, *reply)):
                            log.info("a session was deleted or replaced while it was answered")
                    case _:
                        pass
                yield event


def _reply(answer_prefix: str, parts: list[Part | ToolRun]) -> tuple[Message, ...]:
    """Return the messages of an answer to be stored, with the answer prefix in its first text. An
    answer without parts is an empty text."""
    if answer_prefix:
        parts = _with_prefix(answer_prefix, parts)
    return answer_messages(parts) or (Message("assistant", (Text(""),)),)


def _with_prefix(answer_prefix: str, parts: list[Part | ToolRun]) -> list[Part | ToolRun]:
    for index, part in enumerate(parts):
        if isinstance(part, Text):
            text = msgspec.structs.replace(part, text=answer_prefix + part.text)
            return [*parts[:index], text, *parts[index + 1 :]]
    return [Text(answer_prefix), *parts]


def continued(stored: tuple[Message, ...], sent: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the whole conversation of a request: the stored messages, then the sent messages.

    Most clients send the whole conversation each time, without messages that they were not shown.
    So if the sent messages contain an assistant message and start like the stored conversation,
    they replace it from the first difference on. Sent system messages replace the stored system
    messages.
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
    """Return how many stored and how many sent messages, from the start, are the same conversation.
    Stored tool calls and their results may be missing among the sent messages."""
    kept, taken = 0, 0
    for index, message in enumerate(stored):
        if taken < len(sent) and _same(message, sent[taken]):
            kept, taken = index + 1, taken + 1
        elif not _hidden(message):
            break
    return _with_hidden_results(stored, kept), taken


def _with_hidden_results(stored: tuple[Message, ...], kept: int) -> int:
    """Return `kept`, extended by the results of server tools that follow: the client has not seen
    them and cannot send them."""
    while 0 < kept < len(stored) and stored[kept].role == "tool":
        kept += 1
    return kept


def _same(stored: Message, sent: Message) -> bool:
    """Whether a stored and a sent message are the same one. A client sees only its own calls, so
    the calls of the sent message may be fewer than those of the stored message."""
    if _seen(stored) == _seen(sent):
        return True
    own, all_calls = _call_ids(sent), _call_ids(stored)
    same_text = stored.role == sent.role == "assistant" and _text(stored) == _text(sent)
    return same_text and bool(own) and own <= all_calls


def _call_ids(message: Message) -> set[str]:
    return {part.id for part in message.parts if isinstance(part, ToolCall)}


def _hidden(message: Message) -> bool:
    """Whether the client may not have been shown a message: a tool result, or an assistant message
    without text."""
    return message.role == "tool" or (message.role == "assistant" and not _text(message))


def _seen(message: Message) -> tuple[str, str, tuple[Part, ...]]:
    """Return the key by which a stored and a sent message are compared: role, text and media."""
    if message.role == "tool":
        return "tool", "".join(getattr(part, "call_id", "") for part in message.parts), ()
    calls = "".join(getattr(part, "id", "") for part in message.parts)
    media = tuple(part for part in message.parts if isinstance(part, Image | Audio | Video))
    return message.role, _text(message) or calls, media


def _text(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, Text)).strip()
