"""Converts an answer that contains calls of server tools into the messages of a conversation."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.dialog.message import Message, Part, ToolCall
from penstock.dialog.server_tools import ToolRun


def answer_messages(parts: Iterable[Part | ToolRun]) -> tuple[Message, ...]:
    """Return the messages of an answer.

    Each round is an assistant message with its text, reasoning and calls, followed by one tool
    message per result of a server tool, with the result's images. The client's calls of a round are
    in the same assistant message as the calls of server tools; their results are not part of the
    answer. Unfinished calls are left out.

    `parts`: the parts of one choice and its server tool calls, in order. In each round, the parts
    of the model precede the server tool calls.
    """
    messages: list[Message] = []
    said: list[Part] = []
    results: list[Message] = []
    round: int | None = None

    def end_round() -> None:
        if said:
            messages.append(Message("assistant", tuple(said)))
        messages.extend(results)
        said.clear()
        results.clear()

    for part in parts:
        if isinstance(part, ToolRun):
            if results and part.round != round:
                end_round()
            round = part.round
            said.append(part.call)
            results.append(Message("tool", (part.result, *part.images)))
            continue
        if results:
            end_round()
        if not isinstance(part, ToolCall) or part.whole:
            said.append(part)
    end_round()
    return tuple(messages)
