"""The answer prefix: text of the assistant in the last message, from which the answer continues."""

from __future__ import annotations

from penstock.api.codecs.request_fields.refusals import refuse
from penstock.dialog import Message, ReasoningPolicy, Text


def split_answer_prefix(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], str]:
    """Return the conversation without its answer prefix, and the answer prefix, which may be
    empty."""
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
    """Return the policy of an answer with a prefix, which has no reasoning before it."""
    if policy.enabled:
        refuse("messages", "end with an answer prefix, which excludes thinking")
    return ReasoningPolicy(enabled=False)
