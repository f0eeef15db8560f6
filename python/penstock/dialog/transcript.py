"""Converts an answer that contains calls of server tools into the messages of a conversation."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.dialog.message import Message, Part, ToolCall, ToolResult
from penstock.dialog.server_tools import ToolRun


def answer_messages(parts: Iterable[Part | ToolRun]) -> tuple[Message, ...]:
    """Return the messages that the parts of an answer stand for.

    Each round is an assistant message with its text, reasoning and calls, followed by one tool
    message per result of a server tool. The client's calls of a round are in the same assistant
    message as the calls of server tools; their results are not part of the answer.

    `parts`: the parts of one choice and its server tool calls, in order. A new assistant message
    starts when text or reasoning follows results, or when the round of the calls changes. Raises
    nothing; no parts give no messages.
    """
    messages: list[Message] = []
    said: list[Part] = []
    results: list[ToolResult] = []
    round: int | None = None

    def end_round() -> None:
        if said:
            messages.append(Message("assistant", tuple(said)))
        messages.extend(Message("tool", (result,)) for result in results)
        said.clear()
        results.clear()

    for part in parts:
        if isinstance(part, ToolRun):
            if results and part.round != round:
                end_round()
            round = part.round
            said.append(part.call)
            results.append(part.result)
            continue
        # A client's call belongs to the round of the server's calls before it.
        if results and not isinstance(part, ToolCall):
            end_round()
        said.append(part)
    end_round()
    return tuple(messages)
