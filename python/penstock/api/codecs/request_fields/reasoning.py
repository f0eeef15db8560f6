"""Decodes `enable_thinking`, `reasoning_effort` and `chat_template_kwargs`."""

from __future__ import annotations

from typing import Final

from penstock.api.codecs.request_fields.refusals import one_of, quoted, refuse
from penstock.api.schema.conversation import ConversationFields
from penstock.dialog import ReasoningPolicy

EFFORTS: Final = ("off", "none", "minimal", "low", "medium", "high", "xhigh", "max")
OFF: Final = ("off", "none")
SAME_AS: Final = {"minimal": "low", "max": "xhigh"}


def decode_reasoning(body: ConversationFields, enabled: bool | None = None) -> ReasoningPolicy:
    """Return the reasoning policy of a request. `enabled`: the value of the dialect's own field
    (`thinking`), None if absent.

    Raises InvalidRequest if fields contradict each other.
    """
    if enabled is not None and body.enable_thinking not in (None, enabled):
        refuse("enable_thinking", "contradicts `thinking`")
    enabled = body.enable_thinking if enabled is None else enabled
    effort = decode_effort(body.reasoning_effort, "reasoning_effort")
    kwargs = body.chat_template_kwargs
    if kwargs is not None:
        path = "chat_template_kwargs.reasoning_effort"
        inner_effort = decode_effort(kwargs.reasoning_effort, path)
        enabled = kwargs.enable_thinking if enabled is None else enabled
        effort = inner_effort if effort is None else effort
    if effort is None:
        return ReasoningPolicy(enabled)
    off = effort in OFF
    if enabled is not None and enabled is off:
        refuse("reasoning_effort", "contradicts `enable_thinking`")
    return ReasoningPolicy(not off, None if off else effort)


def decode_effort(effort: str | None, path: str) -> str | None:
    """Return an effort level in lower case; None if absent. `minimal` becomes `low` and `max`
    becomes `xhigh`. Raises InvalidRequest for an unknown level."""
    if effort is None:
        return None
    effort = effort.strip().lower()
    if effort not in EFFORTS:
        refuse(path, f"must be {one_of(EFFORTS)}, not {quoted(effort)}")
    return SAME_AS.get(effort, effort)
