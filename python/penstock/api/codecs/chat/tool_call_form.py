"""How a chat answer represents tool calls: as `tool_calls`, or as the older `function_call`."""

from __future__ import annotations

from typing import Any, Protocol

from penstock.api.codecs.openai_envelope import openai_finish
from penstock.dialog import ToolCall
from penstock.dialog.events import Finish


class CallForm(Protocol):
    """Represents tool calls in chat answers and chunks."""

    def started(self, index: int, call_id: str | None, name: str | None) -> dict[str, Any]:
        """Return the delta that starts a call. `index`: number of the call in its choice."""
        ...

    def continued(self, index: int, arguments: str) -> dict[str, Any]:
        """Return the delta with the next piece of a call's arguments."""
        ...

    def whole(self, calls: list[ToolCall]) -> dict[str, Any]:
        """Return the fields of a complete message that contain its calls."""
        ...

    def finish(self, finish: Finish) -> str:
        """Return the `finish_reason` that this form uses for `finish`."""
        ...


class ToolCalls:
    """Represents any number of calls as `tool_calls`."""

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
        return openai_finish(finish)


class FunctionCall:
    """Represents one call as `function_call`, which has no id; answers requests with
    `functions`."""

    def started(self, index: int, call_id: str | None, name: str | None) -> dict[str, Any]:
        return {"function_call": {"name": name, "arguments": ""}}

    def continued(self, index: int, arguments: str) -> dict[str, Any]:
        return {"function_call": {"arguments": arguments}}

    def whole(self, calls: list[ToolCall]) -> dict[str, Any]:
        return {"function_call": {"name": calls[0].name, "arguments": calls[0].arguments}}

    def finish(self, finish: Finish) -> str:
        return "function_call" if finish == "tool_calls" else openai_finish(finish)
