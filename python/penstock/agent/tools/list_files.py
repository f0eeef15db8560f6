"""The tool that lists the files of the session."""

from __future__ import annotations

import msgspec

from penstock.agent.tools.tool import CallContext, ToolOutcome, decode_arguments, function_tool
from penstock.agent.workspace import Workspace
from penstock.base.errors import ServiceError
from penstock.dialog import CustomActivity
from penstock.dialog.tool_names import LIST_FILES


class ListArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The tool has no arguments."""


class ListFiles:
    """Lists the input files and output files of the session."""

    info = LIST_FILES
    reads_only = True

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.function = function_tool(
            self.info.name,
            "List the files of this conversation: those of the user and those that tools made.",
            ListArguments,
        )

    def decode(self, arguments: str) -> ListArguments:
        return decode_arguments(arguments, ListArguments)

    def describe(self, arguments: ListArguments) -> CustomActivity:
        return CustomActivity(arguments="{}")

    async def run(self, arguments: ListArguments, context: CallContext) -> ToolOutcome:
        try:
            files = await self._workspace.files()
        except ServiceError as error:
            activity = CustomActivity(arguments="{}", status="error", content=error.message)
            return ToolOutcome(activity, {"error": error.message}, is_error=True)
        listed = [
            {
                "id": file.id,
                "name": file.name,
                "format": file.format,
                "bytes": file.size_bytes,
                "purpose": file.purpose,
                "source": file.source.tool,
                "round": file.source.round,
                "turn": file.source.turn,
            }
            for file in files
        ]
        names = ", ".join(file.name for file in files)
        activity = CustomActivity(arguments="{}", status="success", content=names)
        # The loop adds the output files of a call under `files`; a listing makes none.
        return ToolOutcome(activity, {"files": listed})
