"""Splits the answer prefix (the assistant's text in the last message) from a conversation."""

from __future__ import annotations

from penstock.api.codecs.request_fields.refusals import refuse
from penstock.dialog import Message, ReasoningPolicy, Text


def split_answer_prefix(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], str]:
    """Return (messages without the answer prefix, answer prefix). The prefix is "" unless the last
    of several messages is text of the assistant. Raises InvalidRequest if the prefix ends with
    white space."""
    if len(messages) < 2 or messages[-1].role != "assistant":
        return messages, ""
    *before, last = messages
    texts = [part.text for part in last.parts if isinstance(part, Text)]
    if len(texts) < len(last.parts):
        return messages, ""
    answer_prefix = "".join(texts)
    if answer_prefix != answer_prefix.rstrip():
        refuse("messages", "must not end with white space if they end with an answer prefix")
    return tuple(before), answer_prefix


def without_reasoning(policy: ReasoningPolicy) -> ReasoningPolicy:
    """Return a policy with reasoning turned off, for an answer with a prefix. Raises InvalidRequest
    if the request turns reasoning on."""
    if policy.enabled:
        refuse("messages", "end with an answer prefix, which excludes thinking")
    return ReasoningPolicy(enabled=False)
