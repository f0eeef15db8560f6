"""The tool that gives files of the working directory to the user."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.agent.tools.outputs import DeclaredOutput, declared, output_files
from penstock.agent.tools.tool import (
    CallContext,
    ToolOutcome,
    arguments_json,
    decode_arguments,
    function_tool,
)
from penstock.agent.workspace import Workspace
from penstock.base.errors import ServiceError
from penstock.dialog import CustomActivity
from penstock.dialog.tool_names import SURFACE_OUTPUTS


class SurfaceArguments(msgspec.Struct, forbid_unknown_fields=True):
    """`outputs`: files in the working directory, possibly of earlier calls."""

    outputs: Annotated[list[DeclaredOutput], msgspec.Meta(min_length=1)]


class SurfaceOutputs:
    """Gives files that earlier calls wrote to the user."""

    info = SURFACE_OUTPUTS
    reads_only = True

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.function = function_tool(
            self.info.name,
            "Give files in the working directory to the user, also files of earlier calls.",
            SurfaceArguments,
        )

    def decode(self, arguments: str) -> SurfaceArguments:
        return decode_arguments(arguments, SurfaceArguments)

    def describe(self, arguments: SurfaceArguments) -> CustomActivity:
        return CustomActivity(arguments=arguments_json(arguments))

    async def run(self, arguments: SurfaceArguments, context: CallContext) -> ToolOutcome:
        shown = arguments_json(arguments)
        try:
            container = await self._workspace.container()
            collected = await container.surface(declared(arguments.outputs))
        except ServiceError as error:
            activity = CustomActivity(arguments=shown, status="error", content=error.message)
            return ToolOutcome(activity, {"status": "error", "error": error.message}, is_error=True)
        failed = [file for file in collected if file.code is not None]
        status = "error" if len(failed) == len(collected) else "success"
        content = ", ".join(file.name for file in collected if file.code is None)
        return ToolOutcome(
            CustomActivity(arguments=shown, status=status, content=content),
            {"status": status, "working_directory": container.working_directory},
            is_error=status == "error",
            files=output_files(collected, arguments.outputs),
        )
