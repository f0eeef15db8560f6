"""Fields of OpenAI's API that are refused unless the operator accepts them."""

from __future__ import annotations

from typing import Final, Literal

OPTION: Final = "--openai-compat"
"""The option of the server, which refusals name."""
OpenAICompat = frozenset[Literal["json_object", "parallel_tool_calls"]]
"""`json_object`: `response_format` may ask for any JSON object. `parallel_tool_calls`: responses
accept `parallel_tool_calls: false`, which means at most one call."""
NO_COMPAT: Final = OpenAICompat()
FULL_COMPAT: Final = OpenAICompat(("json_object", "parallel_tool_calls"))
