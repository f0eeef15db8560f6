"""The tools of a request, and the types of `tool_choice`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

ToolName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_.:-]{1,128}$(?!\n)",
        extra={"wanted": "1 to 128 letters, digits and characters of `_-.:`"},
    ),
]


class FunctionFields(Struct, omit_defaults=True, kw_only=True):
    """The fields that all forms of a function have."""

    name: ToolName | None = None
    description: str | None = None
    strict: Annotated[bool | None, Meta(description="Constrain the arguments to the schema.")] = (
        None
    )


class Function(FunctionFields, kw_only=True):
    """A function that the client runs. `parameters`: the JSON Schema of its arguments."""

    name: ToolName
    parameters: dict[str, Any] | None = None


class FunctionTool(FunctionFields, tag="function", tag_field="type", kw_only=True):
    """A function that the client runs, with its fields nested under `function` or flat."""

    function: Function | None = None
    parameters: dict[str, Any] | None = None


class NamespaceTool(Struct, tag="namespace", tag_field="type", omit_defaults=True):
    """Functions that are grouped under one name. Calls of these functions carry the name as
    `namespace`."""

    name: ToolName
    tools: list[FunctionTool]
    description: str | None = None


class FunctionName(Struct):
    """Selects a function by name."""

    name: str


class FunctionChoice(Struct, tag="function", tag_field="type"):
    """Selects one function, with its name nested under `function` or flat."""

    name: str | None = None
    function: FunctionName | None = None


class AllowedTools(Struct):
    """The functions that the model may call (`auto`), or at least one of which it must call
    (`required`)."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Meta(min_length=1)]


class AllowedToolsChoice(Struct, tag="allowed_tools", tag_field="type"):
    """Limits the calls to some of the functions, with the fields nested under `allowed_tools` or
    flat."""

    mode: Literal["auto", "required"] | None = None
    tools: list[FunctionChoice] | None = None
    allowed_tools: AllowedTools | None = None


ToolChoice = Annotated[
    Literal["auto", "none", "required"] | FunctionChoice | AllowedToolsChoice,
    Meta(description="`required` needs tools."),
]


class CalledFunction(Struct):
    """A called function and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(Struct):
    """A tool call that the model made. `index`: number of the call in its choice."""

    id: str
    function: CalledFunction
    type: Literal["function"]
    index: int
