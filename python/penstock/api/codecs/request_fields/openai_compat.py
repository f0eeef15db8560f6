"""What of OpenAI's API is refused, as the interface says, unless an operator has it accepted."""

from __future__ import annotations

from typing import Final, Literal

OPTION: Final = "--openai-compat"
"""The option of the server, which refusals name."""
Accepted = frozenset[Literal["json_object", "parallel_tool_calls"]]
AS_SPECIFIED: Final = Accepted()
OPENAI: Final = Accepted(("json_object", "parallel_tool_calls"))
"""`response_format` `json_object`: any JSON object. `parallel_tool_calls: false` on responses: at
most one call."""
