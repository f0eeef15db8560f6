"""Decodes `tools` and `tool_choice`: the client's functions, and which of them the model may
call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from penstock.api.codecs.request_fields.constraint import check_depth
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.hosted_tools import undated
from penstock.api.codecs.request_fields.json_body import objects_in
from penstock.api.codecs.request_fields.namespaces import Namespaces
from penstock.api.codecs.request_fields.refusals import quoted, refuse, refuse_missing
from penstock.api.schema import tools as t
from penstock.dialog import FunctionTool, HostedTool, ToolPolicy

MAX_TOOLS: Final = 1024


def prepare_tools(values: dict[str, Any]) -> None:
    """Remove dates from tool types. If a function or choice has a nested object (`function`,
    `allowed_tools`), remove the flat fields of the same entry. Changes the parsed body in place."""
    for tool in objects_in(values.get("tools")):
        if "type" in tool:
            tool["type"] = undated(tool["type"])
        for function in (tool, *objects_in(tool.get("tools"))):
            _unnest(function, "function")
    for choice in objects_in([values.get("tool_choice")]):
        _unnest(choice, "allowed_tools")
        for owner in (choice, *objects_in([choice.get("allowed_tools")])):
            for function in (owner, *objects_in(owner.get("tools"))):
                _unnest(function, "function")


def decode_functions(
    tools: Sequence[object], field_paths: FieldPaths, namespaces: Namespaces
) -> tuple[FunctionTool, ...]:
    """Return the functions in `tools`, in order; server-side tools are skipped. `namespaces`
    records the namespace of each function. Raises InvalidRequest."""
    found: list[FunctionTool] = []
    for index, entry in enumerate(tools):
        path = f"tools[{index}]"
        match entry:
            case t.FunctionTool():
                functions = iter([_function(entry, path)])
            case t.NamespaceTool():
                functions = _namespaced(entry, path, namespaces)
            case _:
                continue
        for tool, parameters_path in functions:
            field_paths.note_schema(len(found), parameters_path)
            found.append(tool)
    check_functions(found)
    return tuple(found)


def check_functions(tools: Sequence[FunctionTool], path: str = "tools") -> None:
    """Raise InvalidRequest if there are more than MAX_TOOLS functions or two have the same name."""
    if len(tools) > MAX_TOOLS:
        refuse(path, f"may hold at most {MAX_TOOLS} tools, not {len(tools)}")
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        refuse(path, f"names the function {quoted(double)} more than once")


def decode_function(function: t.FunctionFields, path: str, schema_field: str) -> FunctionTool:
    """Return a function. `schema_field`: the name of the field that holds the parameter schema.
    Raises InvalidRequest."""
    if function.name is None:
        refuse_missing(f"{path}.name", "the name of the function")
    parameters = getattr(function, schema_field)
    check_depth(parameters, f"{path}.{schema_field}")
    return FunctionTool(
        name=function.name,
        description=function.description,
        parameters=parameters,
        strict=function.strict or False,
    )


def decode_tool_choice(
    choice: t.ToolChoice | None,
    tools: tuple[FunctionTool, ...],
    hosted: tuple[HostedTool, ...] = (),
) -> ToolPolicy:
    """Return the tool policy that `tool_choice` asks for. `required` is satisfied by server-side
    tools too; only functions can be chosen by name."""
    match choice:
        case None | "auto":
            return ToolPolicy()
        case "none":
            return ToolPolicy("none")
        case "required":
            if not tools and not hosted:
                refuse("tool_choice", 'is "required", but the request has no tools')
            return ToolPolicy("required")
        case t.FunctionChoice():
            return ToolPolicy("required", (_name_of(choice, tools, "tool_choice"),))
        case t.AllowedToolsChoice():
            return _allowed_tools(choice, tools)
    raise AssertionError(choice)


def check_named(name: str, tools: Iterable[FunctionTool], path: str, field: str = "tools") -> None:
    """Raise InvalidRequest unless `tools` has a function called `name`. `field`: the field that
    holds the functions."""
    if all(tool.name != name for tool in tools):
        refuse(path, f"names no function of `{field}`: {quoted(name)}")


def _unnest(entry: dict[str, Any], key: str) -> None:
    if entry.get(key) is not None:
        for name in entry.keys() - {"type", key}:
            del entry[name]


def _function(entry: t.FunctionTool, path: str) -> tuple[FunctionTool, str]:
    """Return a function, and the path of its parameter schema."""
    function: t.FunctionFields = entry
    if entry.function is not None:
        function, path = entry.function, f"{path}.function"
    return decode_function(function, path, "parameters"), f"{path}.parameters"


def _namespaced(
    entry: t.NamespaceTool, path: str, namespaces: Namespaces
) -> Iterator[tuple[FunctionTool, str]]:
    """Yield each function of a namespace with the path of its parameter schema. The description of
    the namespace is put before the description of its first function."""
    about = entry.description
    for index, member in enumerate(entry.tools):
        tool, parameters_path = _function(member, f"{path}.tools[{index}]")
        lines = [text for text in (about, tool.description) if text]
        about = None
        qualified = namespaces.add(entry.name, tool.name)
        description = "\n".join(lines) or None
        yield (
            msgspec.structs.replace(tool, name=qualified, description=description),
            parameters_path,
        )


def _allowed_tools(choice: t.AllowedToolsChoice, tools: tuple[FunctionTool, ...]) -> ToolPolicy:
    # OpenAI's chat API nests `mode` and `tools` under `allowed_tools`.
    nested = choice.allowed_tools
    path = "tool_choice" if nested is None else "tool_choice.allowed_tools"
    mode, entries = (choice.mode, choice.tools) if nested is None else (nested.mode, nested.tools)
    if mode is None:
        refuse_missing(f"{path}.mode", '"auto" or "required"')
    named = enumerate(entries or ())
    names = tuple(_name_of(entry, tools, f"{path}.tools[{index}]") for index, entry in named)
    if not names:
        refuse(f"{path}.tools", "must name at least one function")
    return ToolPolicy(mode, names)


def _name_of(choice: t.FunctionChoice, tools: tuple[FunctionTool, ...], path: str) -> str:
    name = choice.name
    if choice.function is not None:
        name, path = choice.function.name, f"{path}.function"
    if name is None:
        refuse_missing(f"{path}.name", "the name of a function")
    check_named(name, tools, f"{path}.name")
    return name
