"""Tools of a request, and which of them the answer may or must call."""

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
    """A function of the client."""

    name: ToolName | None = None
    description: str | None = None
    strict: Annotated[bool | None, Meta(description="Constrain the arguments to the schema.")] = (
        None
    )


class Function(FunctionFields, kw_only=True):
    """A function of the client."""

    name: ToolName
    parameters: dict[str, Any] | None = None


class FunctionTool(FunctionFields, tag="function", tag_field="type", kw_only=True):
    """A function, nested under `function` or flat."""

    function: Function | None = None
    parameters: dict[str, Any] | None = None


class NamespaceTool(Struct, tag="namespace", tag_field="type", omit_defaults=True):
    """Functions under one name, which their calls carry as `namespace`."""

    name: ToolName
    tools: list[FunctionTool]
    description: str | None = None


class FunctionName(Struct):
    """The name of a function of `tools`."""

    name: str


class FunctionChoice(Struct, tag="function", tag_field="type"):
    """A function of `tools`, nested under `function` or flat."""

    name: str | None = None
    function: FunctionName | None = None


class AllowedTools(Struct):
    """The functions that may be called, or of which one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Meta(min_length=1)]


class AllowedToolsChoice(Struct, tag="allowed_tools", tag_field="type"):
    """A subset of `tools`, nested under `allowed_tools` or flat."""

    mode: Literal["auto", "required"] | None = None
    tools: list[FunctionChoice] | None = None
    allowed_tools: AllowedTools | None = None


ToolChoice = Annotated[
    Literal["auto", "none", "required"] | FunctionChoice | AllowedToolsChoice,
    Meta(description="`required` needs tools."),
]


class CalledFunction(Struct):
    """A function and its arguments, as JSON text."""

    name: str
    arguments: str


class ToolCall(Struct):
    """A call that the model wrote."""

    id: str
    function: CalledFunction
    type: Literal["function"]
    index: int
