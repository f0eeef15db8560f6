"""A tool of an MCP server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.agent.mcp.results import CallResult
from penstock.agent.tools.json_arguments import JsonArguments, decode_json_arguments
from penstock.agent.tools.tool import CallContext, ToolOutcome
from penstock.dialog import CustomActivity, FunctionTool, ServerTool

if TYPE_CHECKING:
    import mcp_types

MAX_DESCRIPTION_CHARS: Final = 8192
"""Characters of a tool's description that the model sees."""


class McpTool:
    """The tool `tool` of the server `server`, offered to the model as `name`. `call` runs it."""

    def __init__(
        self,
        name: str,
        server: str,
        tool: mcp_types.Tool,
        call: Callable[[dict[str, Any]], Awaitable[CallResult]],
    ) -> None:
        annotations = tool.annotations
        description = tool.description or tool.title or None
        self.info = ServerTool(name, "custom", "mcp", f"{server}: {tool.name}", server)
        self.function = FunctionTool(
            name,
            description[:MAX_DESCRIPTION_CHARS] if description else None,
            _object_schema(tool.input_schema),
        )
        self.reads_only = annotations is not None and annotations.read_only_hint is True
        self._call = call

    def decode(self, arguments: str) -> JsonArguments:
        """Return the arguments. The server checks them against its schema."""
        return decode_json_arguments(arguments)

    def describe(self, arguments: JsonArguments) -> CustomActivity:
        return CustomActivity(arguments=arguments.text)

    async def run(self, arguments: JsonArguments, context: CallContext) -> ToolOutcome:
        result = await self._call(arguments.values)
        activity = CustomActivity(
            arguments=arguments.text,
            status="error" if result.is_error else "success",
            content=result.text,
        )
        return ToolOutcome(activity, result.text, result.is_error, images=result.images)


def _object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments if it describes an object, else that of any
    object: chat templates read its `properties`."""
    properties = schema.get("properties", {})
    if schema.get("type", "object") != "object" or not isinstance(properties, dict):
        return {"type": "object", "properties": {}}
    return {**schema, "type": "object", "properties": properties}
