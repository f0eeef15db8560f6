"""Features of OpenAI's API that are refused unless the operator turns them on."""

from __future__ import annotations

from typing import Final, Literal

OPTION: Final = "--openai-compat"
"""The server option that turns the features on; error messages name it."""
OpenAICompat = frozenset[Literal["json_object", "parallel_tool_calls"]]
"""The features that are on. `json_object`: `response_format` may ask for any JSON object.
`parallel_tool_calls`: the Responses API accepts `parallel_tool_calls: false`, at most one call."""
NO_COMPAT: Final = OpenAICompat()
FULL_COMPAT: Final = OpenAICompat(("json_object", "parallel_tool_calls"))
