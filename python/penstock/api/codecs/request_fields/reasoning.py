"""`enable_thinking` and `reasoning_effort`, wherever a dialect lets them stand."""

from __future__ import annotations

from typing import Final

from penstock.api.codecs.request_fields.fields import Fields
from penstock.dialog import ReasoningPolicy

EFFORTS: Final = ("off", "none", "minimal", "low", "medium", "high", "xhigh", "max")
OFF: Final = ("off", "none")
SAME_AS: Final = {"minimal": "low", "max": "xhigh"}


def decode_reasoning(fields: Fields, enabled: bool | None = None) -> ReasoningPolicy:
    """What `enable_thinking`, `reasoning_effort` and `chat_template_kwargs` say. `enabled` is what
    a field of the dialect's own said; none may contradict another."""
    own, effort = _thinking(fields)
    if enabled is not None and own is not None and enabled is not own:
        fields.refuse("enable_thinking", "contradicts `thinking`")
    enabled = own if enabled is None else enabled
    kwargs = fields.object("chat_template_kwargs")
    if kwargs is not None:
        inner_enabled, inner_effort = _thinking(kwargs)
        enabled = inner_enabled if enabled is None else enabled
        effort = inner_effort if effort is None else effort
    if effort is None:
        return ReasoningPolicy(enabled)
    off = effort in OFF
    if enabled is not None and enabled is off:
        fields.refuse("reasoning_effort", "contradicts `enable_thinking`")
    return ReasoningPolicy(not off, None if off else effort)


def decode_effort(fields: Fields, key: str) -> str | None:
    """How hard to think, in any case of letters; levels of one meaning get one name."""
    effort = fields.string(key)
    if effort is None:
        return None
    effort = effort.strip().lower()
    Fields({key: effort}, fields.path).choice(key, EFFORTS)
    return SAME_AS.get(effort, effort)


def _thinking(fields: Fields) -> tuple[bool | None, str | None]:
    return fields.boolean("enable_thinking"), decode_effort(fields, "reasoning_effort")
