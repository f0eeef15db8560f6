"""The tool that runs shell commands in the session's container."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from penstock.agent.tools.outputs import DeclaredOutput, declared, output_files
from penstock.agent.tools.sandbox_facts import SandboxFacts
from penstock.agent.tools.tool import CallContext, ToolOutcome, decode_arguments, function_tool
from penstock.agent.workspace import Workspace
from penstock.base.errors import ServiceError
from penstock.dialog import ShellActivity
from penstock.dialog.tool_names import SHELL
from penstock.sandbox.types import ShellJob, ShellResult

MAX_OUTPUT_CHARS: Final = 4096
FILES_LOST: Final = (
    "The container is a new one. Files that were given to the user are in the working directory,"
    " others may be gone."
)
LARGEST_OUTPUT_CHARS: Final = 65536


class ShellArguments(msgspec.Struct, forbid_unknown_fields=True):
    """`commands`: run one after another in one shell. `outputs`: files that they write for the
    user. `timeout_ms`: null for the server's limit."""

    commands: Annotated[list[str], msgspec.Meta(min_length=1)]
    outputs: list[DeclaredOutput] = []
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_output_length: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Shell:
    """Runs commands in a new shell. Only the files of earlier calls persist."""

    info = SHELL
    reads_only = False

    def __init__(self, workspace: Workspace, facts: SandboxFacts, timeout_s: int) -> None:
        self._workspace = workspace
        self._timeout_s = timeout_s
        self.function = function_tool(
            self.info.name,
            "Run commands in a new POSIX shell. The working directory and its files persist between"
            " calls; variables and running processes do not. stdout, stderr and the exit status of"
            " the last command are returned to you; the user does not see them. Files that you"
            " write to the working directory are given to the user; name those that the user asked"
            f" for in `outputs`. Each call may take {timeout_s} seconds. {facts.network_note}"
            f" {facts.files_note}",
            ShellArguments,
        )

    def decode(self, arguments: str) -> ShellArguments:
        return decode_arguments(arguments, ShellArguments)

    def describe(self, arguments: ShellArguments) -> ShellActivity:
        return ShellActivity(commands=tuple(arguments.commands))

    async def run(self, arguments: ShellArguments, context: CallContext) -> ToolOutcome:
        timeout_s = min(self._timeout_s, (arguments.timeout_ms or self._timeout_s * 1000) / 1000)
        chars = min(arguments.max_output_length or MAX_OUTPUT_CHARS, LARGEST_OUTPUT_CHARS)
        job = ShellJob(
            commands=tuple(arguments.commands),
            timeout_s=timeout_s,
            max_output_chars=chars,
            outputs=declared(arguments.outputs),
        )
        try:
            container = await self._workspace.container()
            result = await container.run_shell(job)
        except ServiceError as error:
            activity = ShellActivity(commands=job.commands, status="error", stderr=error.message)
            failure = {"status": "error", "stderr": error.message, "exit_code": None}
            return ToolOutcome(activity, failure, is_error=True)
        activity = _activity(job, result, container.working_directory)
        return ToolOutcome(
            activity,
            _shown(activity, result),
            is_error=result.status != "success",
            files=output_files(result.files, arguments.outputs),
        )


def _activity(job: ShellJob, result: ShellResult, directory: str) -> ShellActivity:
    return ShellActivity(
        commands=job.commands,
        status=result.status,
        stdout=result.stdout,
        stderr=result.stderr,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        working_directory=directory,
    )


def _shown(activity: ShellActivity, result: ShellResult) -> dict[str, Any]:
    shown = {
        "status": activity.status,
        "commands": list(activity.commands),
        "working_directory": activity.working_directory,
        "stdout": activity.stdout,
        "stderr": activity.stderr,
        "exit_code": activity.exit_code,
        "timed_out": activity.timed_out,
    }
    return shown | {"note": FILES_LOST} if result.files_lost else shown
