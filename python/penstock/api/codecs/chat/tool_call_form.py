"""The forms of calls in an answer: `tool_calls`, or the `function_call` of old clients."""

from __future__ import annotations

from typing import Any, Protocol

from penstock.dialog import ToolCall
from penstock.dialog.events import Finish


class CallForm(Protocol):
    """A form of calls."""

    def started(self, index: int, call_id: str | None, name: str | None) -> dict[str, Any]:
        """Return the delta that begins a call. `index`: the call's number in its choice."""
        ...

    def continued(self, index: int, arguments: str) -> dict[str, Any]:
        """Return a delta with more arguments."""
        ...

    def whole(self, calls: list[ToolCall]) -> dict[str, Any]:
        """Return the fields of a message that makes calls."""
        ...

    def finish(self, finish: Finish) -> str:
        """Return the finish reason in this form."""
        ...


class ToolCalls:
    """Any number of calls."""

    def started(self, index: int, call_id: str | None, name: str | None) -> dict[str, Any]:
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": call_id, "type": "function", "function": function}
        return {"tool_calls": [call]}

    def continued(self, index: int, arguments: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}

    def whole(self, calls: list[ToolCall]) -> dict[str, Any]:
        return {
            "tool_calls": [
                {
                    "index": index,
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(calls)
            ]
        }

    def finish(self, finish: Finish) -> str:
        return finish


class FunctionCall:
    """One call, without an id: for requests with `functions`."""

    def started(self, index: int, call_id: str | None, name: str | None) -> dict[str, Any]:
        return {"function_call": {"name": name, "arguments": ""}}

    def continued(self, index: int, arguments: str) -> dict[str, Any]:
        return {"function_call": {"arguments": arguments}}

    def whole(self, calls: list[ToolCall]) -> dict[str, Any]:
        return {"function_call": {"name": calls[0].name, "arguments": calls[0].arguments}}

    def finish(self, finish: Finish) -> str:
        return "function_call" if finish == "tool_calls" else finish
