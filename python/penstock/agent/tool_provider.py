"""Chooses the server tools of each request.

Tools are offered if the request asks for them and the operator has turned them on: web search,
Python and the shell by their own entries; MCP tools and the dispatch URL always; file tools beside
Python and the shell, and for requests with files.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.agent.protocols import (
    AgentObserver,
    ApprovalStore,
    FileStore,
    NoObserver,
    SkillStore,
)
from penstock.agent.skills import load_skills, skill_folders, skill_instructions
from penstock.agent.toolbox import Toolbox
from penstock.agent.tools.execute_python import ExecutePython
from penstock.agent.tools.list_files import ListFiles
from penstock.agent.tools.read_file import ReadFile
from penstock.agent.tools.reset_python import ResetPython
from penstock.agent.tools.sandbox_facts import SandboxFacts
from penstock.agent.tools.shell import Shell
from penstock.agent.tools.surface_outputs import SurfaceOutputs
from penstock.agent.tools.tool import Tool
from penstock.agent.workspace import Containers, Workspace, Workspaces
from penstock.base.errors import InvalidRequest
from penstock.config import AgentSettings
from penstock.dialog import (
    FunctionTool,
    GenerateRequest,
    PythonTool,
    SearchTool,
    ShellTool,
)
from penstock.generation.request_checks import tool_is_off
from penstock.store.records import SkillBundle


class SearchTools(Protocol):
    """Makes the tools of web search for one request: `agent.web.WebTools`."""

    def tools(self, options: SearchTool) -> Sequence[Tool[Any]]: ...


class McpTools(Protocol):
    """The tools of MCP servers at this moment: `agent.mcp.McpServers`."""

    def tools(self) -> Sequence[Tool[Any]]: ...


class DispatchTools(Protocol):
    """Makes tools that call the dispatch URL: `agent.tools.dispatch.DispatchTools`."""

    def tools(self, functions: Sequence[FunctionTool]) -> Sequence[Tool[Any]]: ...


@dataclass(frozen=True)
class ToolSources:
    """The objects that run server tools.

    - `settings`: the operator's settings.
    - `files`, `approvals`, `skills`: the stores.
    - `containers`: None if Python and the shell are off.
    - `facts`: returns the facts about the sandbox.
    - `web`, `mcp`, `dispatch`: None if web search, MCP or the dispatch URL is off.
    """

    settings: AgentSettings
    files: FileStore
    approvals: ApprovalStore
    skills: SkillStore | None = None
    containers: Containers | None = None
    facts: Callable[[], Awaitable[SandboxFacts]] | None = None
    web: SearchTools | None = None
    mcp: McpTools | None = None
    dispatch: DispatchTools | None = None
    observer: AgentObserver = field(default_factory=NoObserver)


class ToolProvider:
    """Chooses the server tools of requests."""

    def __init__(self, sources: ToolSources) -> None:
        self.sources = sources
        self._workspaces = Workspaces(sources.containers, sources.files)

    def applies(self, request: GenerateRequest) -> bool:
        """Whether a request may use server tools."""
        if request.messages is None:
            return False
        if request.hosted or request.files:
            return True
        if request.tool_policy.mode == "none" or request.num_sequences > 1:
            return False
        return bool(self._unasked(request)) or self._reads_files(request)

    async def toolbox(
        self, request: GenerateRequest, session: str, container: str
    ) -> tuple[Toolbox, Workspace]:
        """Return the server tools of a request and the workspace in which they run.

        Raises NotFound for an unknown skill, and InvalidRequest.
        """
        shell = next((tool for tool in request.hosted if isinstance(tool, ShellTool)), None)
        bundles: tuple[SkillBundle, ...] = ()
        if shell is not None and shell.skills:
            assert self.sources.skills is not None
            bundles = await load_skills(self.sources.skills, shell.skills)
        workspace = self._workspaces.workspace(
            session, container, request.file_ids, skill_folders(bundles)
        )
        tools: list[Tool[Any]] = []
        if request.tool_policy.mode != "none":
            tools = [*await self._hosted(request, workspace), *self._unasked(request)]
            if self._makes_files(request) or self._reads_files(request):
                tools += [ReadFile(workspace), ListFiles(workspace)]
        instructions = (skill_instructions(bundles), _required_files(request))
        return Toolbox.of(tools, request, *instructions), workspace

    def check(self, request: GenerateRequest) -> None:
        """Raise InvalidRequest if a request asks for a tool that is off, for output files without a
        tool that makes files, or for several choices."""
        settings = self.sources.settings
        enabled = {
            SearchTool: settings.enable_search,
            PythonTool: settings.enable_code_execution,
            ShellTool: settings.enable_shell,
        }
        for tool in request.hosted:
            if not enabled[type(tool)]:
                raise tool_is_off(tool)
        if request.files and not self._makes_files(request):
            raise InvalidRequest(
                "`files`: output files need the Python or the shell tool in `tools`",
                field="files",
            )
        if request.num_sequences > 1:
            raise InvalidRequest("n must be 1 for requests with tools of the server", field="n")

    async def _hosted(self, request: GenerateRequest, workspace: Workspace) -> list[Tool[Any]]:
        settings, tools = self.sources.settings, list[Tool[Any]]()
        facts = SandboxFacts()
        if self.sources.facts is not None and self._makes_files(request):
            facts = await self.sources.facts()
        for hosted in request.hosted:
            match hosted:
                case SearchTool():
                    assert self.sources.web is not None
                    tools += self.sources.web.tools(hosted)
                case PythonTool():
                    run = ExecutePython(workspace, facts, settings.code_exec_timeout)
                    tools += [run, ResetPython(workspace)]
                case ShellTool():
                    tools.append(Shell(workspace, facts, settings.shell_timeout))
        if self._makes_files(request):
            tools.append(SurfaceOutputs(workspace))
        return tools

    def _unasked(self, request: GenerateRequest) -> list[Tool[Any]]:
        """Return the tools that requests need not ask for: MCP tools and dispatched functions."""
        tools: list[Tool[Any]] = []
        if self.sources.mcp is not None:
            tools += self.sources.mcp.tools()
        if self.sources.dispatch is not None:
            tools += self.sources.dispatch.tools(request.tools)
        return tools

    def _makes_files(self, request: GenerateRequest) -> bool:
        return any(isinstance(tool, PythonTool | ShellTool) for tool in request.hosted)

    def _reads_files(self, request: GenerateRequest) -> bool:
        """Whether file tools are offered for the files of a request: only if the operator has
        turned on tools, because small models answer worse with functions in the prompt."""
        settings = self.sources.settings
        if not (settings.enable_search or settings.needs_sandbox):
            return False
        return bool(request.file_ids) or request.has_files


def _required_files(request: GenerateRequest) -> str:
    """Return the text that tells the model which files it must make, or ""."""
    if not request.files:
        return ""
    lines = ["Make these files in the working directory with your tools:"]
    for file in request.files:
        kind = f" ({file.format})" if file.format else ""
        hint = f": {file.description}" if file.description else ""
        lines.append(f"- {file.name}{kind}{hint}")
    return "\n".join(lines)
