"""An agent loop over scripted tokens: one text per round, behind the real generator.

    agent = scripted_agent([call("add", a=1, b=2), "The sum is 3."], tools=[Add()])

The scripted engine is the only double. Calls are in the Hermes format, `<tool_call>`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.agent import AgentLoop
from penstock.agent.in_memory import MemoryApprovals, MemoryFiles
from penstock.agent.sessions import SessionStore
from penstock.agent.tool_provider import ToolProvider, ToolSources
from penstock.agent.tools.tool import (
    CallContext,
    OutputFile,
    Tool,
    ToolOutcome,
    decode_arguments,
    function_tool,
)
from penstock.config import AgentSettings
from penstock.dialog import CustomActivity, Event, GenerateRequest, Message, ServerTool, Text
from penstock.generation import Generator
from penstock.text.tool_parsers import TOOL_SYNTAXES, AnswerSyntax
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import INFO, ScriptedEngine

CONTEXT = 2**20


def call(name: str, **arguments: Any) -> str:
    """Return the text of a tool call."""
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def ask(text: str = "go", **fields: Any) -> GenerateRequest:
    return GenerateRequest(messages=(Message("user", (Text(text),)),), **fields)


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""


@dataclass
class TestTool:
    """A server tool of a test, which records its calls. `work` makes the result."""

    __test__ = False
    name: str = "echo"
    reads_only: bool = False
    work: Callable[[Arguments, CallContext], Any] = lambda arguments, _: arguments.text
    files: tuple[OutputFile, ...] = ()
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.info = ServerTool(self.name, "custom", "mcp", self.name, "test")
        self.function = function_tool(self.name, "A tool of a test.", Arguments)

    def decode(self, arguments: str) -> Arguments:
        return decode_arguments(arguments, Arguments)

    def describe(self, arguments: Arguments) -> CustomActivity:
        return CustomActivity(arguments=json.dumps({"text": arguments.text}))

    async def run(self, arguments: Arguments, context: CallContext) -> ToolOutcome:
        self.calls.append(arguments.text)
        result = self.work(arguments, context)
        if hasattr(result, "__await__"):
            result = await result
        activity = CustomActivity(
            arguments=json.dumps({"text": arguments.text}), status="success", content=str(result)
        )
        return ToolOutcome(activity, {"output": result}, files=self.files)


@dataclass(frozen=True)
class FixedTools:
    """A source of tools that requests need not ask for."""

    offered: Sequence[Tool[Any]]

    def tools(self) -> Sequence[Tool[Any]]:
        return self.offered


@dataclass(frozen=True)
class ScriptedAgent:
    """An agent loop with its scripted engine and its stores."""

    loop: AgentLoop
    engine: ScriptedEngine
    files: MemoryFiles
    approvals: MemoryApprovals

    async def run(self, request: GenerateRequest) -> list[Event]:
        return [event async for event in self.loop.run(request)]

    def prompt(self, round: int) -> str:
        """Return the prompt of a round as text."""
        return tiny_tokenizer().decode(self.engine.requests[round].token_ids)


def scripted_engine(texts: Sequence[str]) -> ScriptedEngine:
    """Return an engine that writes one text per request, then empty answers."""
    left = iter(texts)
    info = msgspec.structs.replace(INFO, max_model_len=CONTEXT, vocab_size=264)
    return ScriptedEngine(lambda _: list(next(left, "").encode()), info=info)


def scripted_generator(engine: ScriptedEngine) -> Generator:
    """Return a generator over a scripted engine that reads calls in the Hermes format."""
    syntax = AnswerSyntax(calls=TOOL_SYNTAXES["hermes"])
    return Generator(engine, tiny_tokenizer(), tiny_template(), syntax=syntax)


def scripted_agent(
    texts: Sequence[str],
    tools: Iterable[Tool[Any]] = (),
    settings: AgentSettings = AgentSettings(),  # noqa: B008
    *,
    sessions: SessionStore | None = None,
    **sources: Any,
) -> ScriptedAgent:
    """Return an agent whose model writes one text per round. `tools` are offered to each
    request."""
    engine = scripted_engine(texts)
    generator = scripted_generator(engine)
    files, approvals = MemoryFiles(), MemoryApprovals(timeout_s=60)
    offered = ToolSources(settings, files, approvals, mcp=FixedTools(tuple(tools)), **sources)
    loop = AgentLoop(generator, sessions=sessions, tools=ToolProvider(offered))
    return ScriptedAgent(loop, engine, files, approvals)
