"""The tool that restarts the session's Python interpreter."""

from __future__ import annotations

import msgspec

from penstock.agent.tools.tool import CallContext, ToolOutcome, decode_arguments, function_tool
from penstock.agent.workspace import Workspace
from penstock.base.errors import ServiceError
from penstock.dialog import CustomActivity
from penstock.dialog.tool_names import RESET_PYTHON


class ResetArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The tool has no arguments."""


class ResetPython:
    """Restarts the interpreter: variables and imports are gone, files stay."""

    info = RESET_PYTHON
    reads_only = False

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.function = function_tool(
            self.info.name,
            "Restart the Python interpreter. Variables and imports are gone, files stay.",
            ResetArguments,
        )

    def decode(self, arguments: str) -> ResetArguments:
        return decode_arguments(arguments, ResetArguments)

    def describe(self, arguments: ResetArguments) -> CustomActivity:
        return CustomActivity(arguments="{}")

    async def run(self, arguments: ResetArguments, context: CallContext) -> ToolOutcome:
        status, message = "success", "The interpreter was restarted."
        try:
            await (await self._workspace.container()).reset_python()
        except ServiceError as error:
            status, message = "error", error.message
        activity = CustomActivity(arguments="{}", status=status, content=message)
        result = {"status": status, "message": message}
        return ToolOutcome(activity, result, is_error=status == "error")
