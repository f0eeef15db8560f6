"""Puts the events of a run's parts in the order of the parts."""

from __future__ import annotations

from penstock.dialog import (
    ArgumentsDelta,
    PartEnded,
    PartStarted,
    ReasoningDelta,
    TextDelta,
    ToolCalling,
    ToolCompleted,
)

PartEvent = (
    PartStarted
    | TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | PartEnded
    | ToolCalling
    | ToolCompleted
)


class PartOrder:
    """Holds back the events of a part until all earlier parts have ended.

    Server tools may run side by side, and a tool may run after later parts of its round were
    written. A message has one block after the other, in the order of the parts.

    - `current`: the index of the part whose events are not held back.
    """

    def __init__(self) -> None:
        self.current = 0
        self._held: dict[int, list[PartEvent]] = {}

    def release(self, event: PartEvent) -> list[PartEvent]:
        """Return the events that can be encoded once `event` is known."""
        if event.part > self.current:
            self._held.setdefault(event.part, []).append(event)
            return []
        released = [event]
        while isinstance(released[-1], PartEnded | ToolCompleted):
            self.current += 1
            if self.current not in self._held:
                break
            released += self._held.pop(self.current)
        return released

    def rest(self) -> list[PartEvent]:
        """Return all events that are still held back, part by part."""
        held, self._held = self._held, {}
        return [event for part in sorted(held) for event in held[part]]
