"""The tool that runs Python code in the session's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.agent.tools.outputs import DeclaredOutput, declared, output_files
from penstock.agent.tools.sandbox_facts import SandboxFacts
from penstock.agent.tools.tool import (
    CallContext,
    ToolOutcome,
    decode_arguments,
    function_tool,
)
from penstock.agent.workspace import Workspace
from penstock.base.errors import ServiceError
from penstock.dialog import GenerateRequest, PythonActivity, ToolCall
from penstock.dialog.tool_names import EXECUTE_PYTHON
from penstock.sandbox.types import PythonJob, PythonResult

MAX_MODEL_CHARS: Final = 16384
"""Characters of stdout, stderr, the traceback and the result that the model sees, each."""
STATE_LOST: Final = (
    "The interpreter is a new one: variables of earlier calls are gone. Files that were given to"
    " the user are in the working directory, others may be gone."
)
CUT: Final = "\n[... cut ...]\n"
MAX_NAMED_PACKAGES: Final = 32
COMMON_PACKAGES: Final = frozenset(
    [
        "beautifulsoup4",
        "lxml",
        "matplotlib",
        "networkx",
        "numpy",
        "openpyxl",
        "opencv-python",
        "pandas",
        "pillow",
        "plotly",
        "polars",
        "pyarrow",
        "pypdf",
        "python-docx",
        "python-pptx",
        "pyyaml",
        "reportlab",
        "requests",
        "scikit-learn",
        "scipy",
        "seaborn",
        "statsmodels",
        "sympy",
        "torch",
    ]
)
"""Packages that models use often."""
OFTEN_IMPORTED: Final = ("numpy", "pandas", "scipy", "sympy", "matplotlib", "requests")


class PythonArguments(msgspec.Struct, forbid_unknown_fields=True):
    """`outputs`: the files that the code writes for the user."""

    code: str
    outputs: list[DeclaredOutput] = []


class ExecutePython:
    """Runs Python code. Variables and imports persist between the calls of a session."""

    info = EXECUTE_PYTHON
    reads_only = False

    def __init__(self, workspace: Workspace, facts: SandboxFacts, timeout_s: int) -> None:
        self._workspace = workspace
        self._timeout_s = timeout_s
        description = _description(facts, timeout_s)
        self.function = function_tool(self.info.name, description, PythonArguments)

    def decode(self, arguments: str) -> PythonArguments:
        return decode_arguments(arguments, PythonArguments)

    def describe(self, arguments: PythonArguments) -> PythonActivity:
        return PythonActivity(code=arguments.code)

    async def run(self, arguments: PythonArguments, context: CallContext) -> ToolOutcome:
        try:
            container = await self._workspace.container()
            outputs = declared(arguments.outputs)
            job = PythonJob(code=arguments.code, timeout_s=self._timeout_s, outputs=outputs)
            result = await container.run_python(job)
        except ServiceError as error:
            return _unavailable(arguments, error.message)
        if self._workspace.is_new and _has_run(context.request):
            result = msgspec.structs.replace(result, state_lost=True)
        self._workspace.is_new = False
        directory = container.working_directory
        return ToolOutcome(
            _activity(arguments, result, directory),
            _shown(result, directory, self._timeout_s),
            is_error=result.status != "success",
            files=output_files(result.files, arguments.outputs),
            images=result.images,
        )


def _has_run(request: GenerateRequest) -> bool:
    """Whether the interpreter has run in an earlier turn of the conversation."""
    parts = [part for message in request.messages or () for part in message.parts]
    return any(isinstance(p, ToolCall) and p.name == EXECUTE_PYTHON.name for p in parts)


def _activity(arguments: PythonArguments, result: PythonResult, directory: str) -> PythonActivity:
    return PythonActivity(
        code=arguments.code,
        status=result.status,
        stdout=result.stdout,
        stderr=result.stderr,
        exception=result.exception,
        result=result.result,
        images=result.images,
        video_frames=result.video_frames,
        working_directory=directory,
        execution_time_ms=result.execution_time_ms,
    )


def _shown(result: PythonResult, directory: str, timeout_s: int) -> dict[str, Any]:
    """Return the result that the model sees. Empty fields are left out."""
    shown: dict[str, Any] = {
        "status": result.status,
        "execution_time_ms": result.execution_time_ms,
        "working_directory": directory,
        "stdout": shortened(result.stdout),
        "stderr": shortened(result.stderr),
        "exception": shortened(result.exception or ""),
        "result": shortened(result.result or ""),
        "result_type": result.result_type,
        "images_generated": len(result.images),
        "video_frames_generated": len(result.video_frames),
    }
    if result.status == "timeout":
        shown["timeout_info"] = {
            "timeout_secs": timeout_s,
            "interrupted": result.interrupted,
            "killed": result.killed,
        }
    if result.state_lost:
        shown["note"] = STATE_LOST
    return {key: value for key, value in shown.items() if value not in ("", None, 0)}


def shortened(text: str, max_chars: int = MAX_MODEL_CHARS) -> str:
    """Return a text with its middle cut out if it is longer than `max_chars`."""
    if len(text) <= max_chars:
        return text
    half = (max_chars - len(CUT)) // 2
    return text[:half] + CUT + text[-half:]


def _unavailable(arguments: PythonArguments, message: str) -> ToolOutcome:
    activity = PythonActivity(code=arguments.code, status="error", exception=message)
    return ToolOutcome(activity, {"status": "error", "exception": message}, is_error=True)


def _description(facts: SandboxFacts, timeout_s: int) -> str:
    return (
        f"Run Python {facts.python_version} code. Use it for every calculation, date, count and"
        " file: do not guess what code can compute. Print the values that you need. Only you see"
        " the output, so give the user the value in your next message, in words. Variables,"
        " imports and files of earlier calls are still there. Attached files are in the working"
        " directory: open them by their names. Figures of matplotlib that are shown or left open"
        " are shown to the user. `outputs` names files that the code writes for the user; leave it"
        " out if the user asked for no file."
        f" Each call may take {timeout_s} seconds. {facts.network_note} {facts.files_note}"
        f" Packages cannot be installed. Installed: {_named(facts.packages)}."
    )


def _named(packages: Sequence[str]) -> str:
    """Return the names of packages for the model; of many packages only the common ones, because
    each name costs tokens of every prompt. Packages that models import unasked are named as
    missing."""
    if not packages:
        return "the standard library only"
    shown = list(packages)
    if len(packages) > MAX_NAMED_PACKAGES:
        common = [name for name in packages if name.lower() in COMMON_PACKAGES]
        shown = [*common, f"and {len(packages) - len(common)} others"]
    installed = {name.lower() for name in packages}
    missing = [name for name in OFTEN_IMPORTED if name not in installed]
    absent = f". Not installed: {', '.join(missing)}" if missing else ""
    return ", ".join(shown) + absent
