"""The interface of a server tool.

A tool declares the function that the model calls, says how a call is shown to people, and runs it.
The agent loop does the rest: it decodes the arguments, asks for approvals, stores output files,
reports events, and ends the call if the client leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from penstock.dialog import (
    FunctionTool,
    GenerateRequest,
    ServerTool,
    ToolActivity,
    ToolCall,
)

A = TypeVar("A", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class CallContext:
    """The surroundings of one call.

    - `session`: id of the session.
    - `container`: id of the container in which Python and the shell keep their state.
    - `round`: number of the round, from 0.
    - `call`: the call, as the model wrote it.
    - `request`: the client's request, with the whole conversation before this run.
    """

    session: str
    container: str
    round: int
    call: ToolCall
    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a call made.

    - `name`: path relative to the working directory.
    - `data`: the content; None if the file is too large to keep, or for an error.
    - `code`, `message`: why there is no file, if a declared output is missing or unusable.
    """

    name: str
    data: bytes | None
    size_bytes: int = 0
    format: str | None = None
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The result of a call.

    - `activity`: the call with its results, as people and clients see it.
    - `result`: the result as the model sees it: a JSON object, to which the loop adds the list of
      stored files, or a text.
    - `is_error`: the call failed.
    - `files`: output files, which the loop stores.
    - `images`: image files of the result, for a model that reads images.
    """

    activity: ToolActivity
    result: dict[str, Any] | str
    is_error: bool = False
    files: tuple[OutputFile, ...] = ()
    images: tuple[bytes, ...] = ()


class Tool(Protocol[A]):
    """A server tool.

    - `info`: its identity. `info.name` equals the name of its function.
    - `function`: the declaration that the model sees.
    - `reads_only`: calls have no side effects, so that they may run side by side.
    """

    info: ServerTool
    function: FunctionTool
    reads_only: bool

    def decode(self, arguments: str) -> A:
        """Return the decoded arguments of a call. Raises BadArguments with a message for the
        model."""
        ...

    def describe(self, arguments: A) -> ToolActivity:
        """Return the activity of a call that has not run yet: its input."""
        ...

    async def run(self, arguments: A, context: CallContext) -> ToolOutcome:
        """Run a call. Failures of the call are outcomes with `is_error`, not exceptions. If the
        task is cancelled, everything that the call has started ends before the method returns."""
        ...


class BadArguments(Exception):
    """The model wrote arguments that do not fit the function. `message`: for the model."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def decode_arguments(arguments: str, kind: type[A]) -> A:
    """Return the arguments of a call as a struct. Empty arguments are an empty object. Raises
    BadArguments, whose message names the field."""
    try:
        return msgspec.json.decode(arguments.strip() or "{}", type=kind)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise BadArguments(f"invalid arguments: {error}") from None


def arguments_json(arguments: msgspec.Struct) -> str:
    """Return decoded arguments as JSON text, for an activity."""
    return msgspec.json.encode(arguments).decode()


def function_tool(name: str, description: str, arguments: type[msgspec.Struct]) -> FunctionTool:
    """Return the declaration of a built-in function. The JSON schema of its parameters is generated
    from the struct `arguments`."""
    schema = msgspec.json.schema(arguments)
    definitions = schema.get("$defs", {})
    parameters = _inlined(schema, definitions)
    assert isinstance(parameters, dict)
    return FunctionTool(name, description, parameters, strict=True)


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """Return a JSON schema without `$ref`, titles and defaults, whose objects take no further
    keys."""
    if isinstance(node, list):
        return [_inlined(entry, definitions) for entry in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    ignored = ("$defs", "title", "default")
    plain = {key: _inlined(value, definitions) for key, value in node.items() if key not in ignored}
    if "properties" in plain:
        plain["additionalProperties"] = False
    return plain
