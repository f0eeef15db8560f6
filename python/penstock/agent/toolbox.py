"""The server tools of one request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.agent.tools.tool import Tool
from penstock.base.errors import InvalidRequest
from penstock.dialog import GenerateRequest, Message, Text, ToolPolicy

SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The server tools that one request may call.

    - `tools`: name -> tool.
    - `instructions`: paragraphs for the system message: skills, input files, required files.
    """

    tools: Mapping[str, Tool[Any]]
    instructions: tuple[str, ...] = field(default=())

    @classmethod
    def of(
        cls, tools: Iterable[Tool[Any]], request: GenerateRequest, *instructions: str
    ) -> Toolbox:
        """Make the toolbox of a request. Raises InvalidRequest if a function of the client has the
        name of a server tool.

        A server tool may replace a function of the client: then it declares the same function.
        """
        named: dict[str, Tool[Any]] = {}
        for tool in tools:
            named.setdefault(tool.info.name, tool)
        for index, function in enumerate(request.tools):
            tool = named.get(function.name)  # type: ignore[assignment]
            if tool is not None and tool.function is not function:
                raise InvalidRequest(
                    f"`tools[{index}]`: {function.name!r} is the name of a tool of this server;"
                    " rename the function",
                    field=f"tools[{index}]",
                )
        return cls(named, tuple(filter(None, instructions)))

    def first_round(self, request: GenerateRequest) -> GenerateRequest:
        """Return the request of the first round, which a generator can answer: the functions of the
        server tools are declared, and the instructions are in the system message."""
        own = {function.name for function in request.tools}
        declared = tuple(t.function for name, t in self.tools.items() if name not in own)
        messages = _with_instructions(request.messages or (), self.instructions)
        return msgspec.structs.replace(
            request,
            messages=messages,
            tools=request.tools + declared,
            hosted=(),
            files=(),
        )

    def next_round(
        self, first: GenerateRequest, answer: tuple[Message, ...], left_tokens: int | None
    ) -> GenerateRequest:
        """Return the request of a further round.

        - `first`: the request of the first round.
        - `answer`: the calls and results of the rounds so far.
        - `left_tokens`: tokens that the answer may still have; None: no limit.
        """
        assert first.messages is not None
        limits = msgspec.structs.replace(first.limits, max_tokens=left_tokens, min_tokens=0)
        return msgspec.structs.replace(
            first,
            messages=(*first.messages, *answer),
            answer_prefix="",
            limits=limits,
            # A required call was made in the first round. The model must now be free to answer.
            tool_policy=ToolPolicy("auto", parallel=first.tool_policy.parallel),
        )


def _with_instructions(
    messages: tuple[Message, ...], instructions: tuple[str, ...]
) -> tuple[Message, ...]:
    """Return the messages with instructions in front. They join the first system message, because
    many chat templates accept only one."""
    if not instructions:
        return messages
    text = "\n\n".join(instructions)
    if messages and messages[0].role in SYSTEM_ROLES:
        first = messages[0]
        joined = Message(first.role, (Text(text + "\n\n"), *first.parts), first.name)
        return (joined, *messages[1:])
    return (Message("system", (Text(text),)), *messages)
