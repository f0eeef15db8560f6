"""`tools` and `tool_choice`: the functions of the client and which of them may be called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from penstock.api.codecs.request_fields.constraint import check_depth
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.fields import Fields, one_of, shown
from penstock.api.codecs.request_fields.hosted_tools import hosted_kind
from penstock.api.codecs.request_fields.namespaces import Namespaces
from penstock.dialog import FunctionTool, HostedTool, ToolPolicy

MAX_TOOLS: Final = 1024
NAMESPACE: Final = "namespace"
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def decode_functions(
    fields: Fields,
    hosted: Sequence[str],
    names: FieldPaths,
    namespaces: Namespaces | None = None,
) -> tuple[FunctionTool, ...]:
    """The functions of `tools`, in order. `hosted`: the other kinds that the dialect has, which
    are left to `hosted.decode_hosted_tools`; what is none of them is refused. `namespaces` learns
    who stands in one; None: the dialect has none."""
    if fields.get("tools") is None:
        return ()
    tools: list[FunctionTool] = []
    others = hosted if namespaces is None else (NAMESPACE, *hosted)
    for entry in fields.objects("tools"):
        kind = entry.required_string("type")
        if hosted_kind(kind) in hosted:
            continue
        if namespaces is not None and kind == NAMESPACE:
            functions = _namespaced(entry, namespaces)
        else:
            function = _function(entry, others)
            functions = iter([(function, decode_function(function))])
        for function, tool in functions:
            names.note_schema(len(tools), function.name_of("parameters"))
            tools.append(tool)
    check_functions(fields, tools)
    return tuple(tools)


def check_functions(fields: Fields, tools: Sequence[FunctionTool], key: str = "tools") -> None:
    """Refuse too many functions, and two of one name, in the field they came in."""
    if len(tools) > MAX_TOOLS:
        fields.refuse(key, f"may hold at most {MAX_TOOLS} tools, not {len(tools)}")
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        fields.refuse(key, f"names the function {shown(double)} more than once")


def decode_function_name(function: Fields) -> str:
    """The `name` under which a function can be called."""
    name = function.required_string("name")
    if not TOOL_NAME.fullmatch(name):
        function.refuse("name", "must be 1 to 128 letters, digits and characters of `_-.:`")
    return name


def decode_tool_choice(
    fields: Fields, tools: tuple[FunctionTool, ...], hosted: tuple[HostedTool, ...] = ()
) -> ToolPolicy:
    """All four forms of the specification. Hosted tools can be required, but not chosen."""
    value = fields.get("tool_choice")
    if value is None:
        return ToolPolicy()
    if type(value) is str:
        mode = fields.choice("tool_choice", ("auto", "none", "required"))
        if mode == "required" and not tools and not hosted:
            fields.refuse("tool_choice", 'is "required", but the request has no tools')
        return ToolPolicy("none" if mode == "none" else _mode(mode))
    if type(value) is not dict:
        fields.refuse_type("tool_choice", 'a string ("auto", "none", "required") or an object')
    choice = fields.required_object("tool_choice")
    kind = choice.required_string("type")
    if hosted_kind(kind) is not None:
        choice.refuse("type", f"cannot force the hosted tool {shown(kind)}")
    if choice.choice("type", ("function", "allowed_tools")) == "allowed_tools":
        return _allowed_tools(choice, tools)
    return ToolPolicy("required", (_function_name(choice, tools),))


def _function(entry: Fields, hosted: Sequence[str]) -> Fields:
    """The object that describes the function of an entry of `tools`."""
    kind = entry.required_string("type")
    if kind.startswith("web_search"):
        entry.refuse("type", "does not take web search; use `web_search_options`")
    if kind != "function":
        wanted = one_of(("function", *hosted))
        entry.refuse("type", f"must be {wanted}, not {shown(kind)}", code="unsupported_value")
    return entry.object("function") or entry


def decode_function(function: Fields) -> FunctionTool:
    """`{name, description?, parameters?, strict?}`, wherever it stands."""
    name = decode_function_name(function)
    parameters = function.object("parameters")
    if parameters is not None:
        check_depth(function, "parameters", parameters.values)
    return FunctionTool(
        name=name,
        description=function.string("description"),
        parameters=parameters.values if parameters is not None else None,
        strict=function.boolean("strict") or False,
    )


def _namespaced(entry: Fields, namespaces: Namespaces) -> Iterator[tuple[Fields, FunctionTool]]:
    """The functions of a namespace, each with the object that describes it. What the namespace says
    of itself stands before the description of its first."""
    namespace = decode_function_name(entry)
    about = entry.string("description")
    for member in entry.objects("tools"):
        function = _function(member, ())
        tool = decode_function(function)
        lines = [text for text in (about, tool.description) if text]
        about = None
        yield (
            function,
            msgspec.structs.replace(
                tool,
                name=namespaces.add(namespace, tool.name),
                description="\n".join(lines) or None,
            ),
        )


def _allowed_tools(choice: Fields, tools: tuple[FunctionTool, ...]) -> ToolPolicy:
    # OpenAI's chat API nests this form in a field of its own; the specification does not.
    inner = choice.object("allowed_tools") or choice
    inner.required_string("mode")
    mode = inner.choice("mode", ("auto", "required"))
    names = []
    for entry in inner.objects("tools"):
        kind = entry.required_string("type")
        if kind != "function":
            entry.refuse("type", f'must be "function", not {shown(kind)}')
        names.append(_function_name(entry, tools))
    if not names:
        inner.refuse("tools", "must name at least one function")
    return ToolPolicy(_mode(mode), tuple(names))


def _function_name(entry: Fields, tools: tuple[FunctionTool, ...]) -> str:
    owner = entry.object("function") or entry
    name = owner.required_string("name")
    if all(tool.name != name for tool in tools):
        owner.refuse("name", f"names no function of `tools`: {shown(name)}")
    return name


def _mode(mode: str | None) -> Literal["auto", "required"]:
    return "required" if mode == "required" else "auto"
