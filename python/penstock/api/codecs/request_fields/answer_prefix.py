"""An answer that a conversation has begun already: its last message, of the assistant."""

from __future__ import annotations

from penstock.api.codecs.request_fields.fields import Fields
from penstock.dialog import Message, ReasoningPolicy, Text


def split_answer_prefix(
    fields: Fields, messages: tuple[Message, ...]
) -> tuple[tuple[Message, ...], str]:
    """The conversation, and the answer that its last message begins: text of the assistant."""
    if len(messages) < 2 or messages[-1].role != "assistant":
        return messages, ""
    *before, last = messages
    texts = [part.text for part in last.parts if isinstance(part, Text)]
    if len(texts) < len(last.parts):
        return messages, ""
    answer_prefix = "".join(texts)
    if answer_prefix != answer_prefix.rstrip():
        fields.refuse("messages", "must not end with white space where they begin the answer")
    return tuple(before), answer_prefix


def without_reasoning(fields: Fields, policy: ReasoningPolicy) -> ReasoningPolicy:
    """An answer that is begun already has no reasoning before it."""
    if policy.enabled:
        fields.refuse("messages", "end with a begun answer, which excludes thinking")
    return ReasoningPolicy(enabled=False)
