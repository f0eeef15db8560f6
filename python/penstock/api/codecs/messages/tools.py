"""`tools`, `tool_choice` and `container` of a messages request."""

from __future__ import annotations

from typing import Final

from penstock.api.codecs.request_fields.constraint import check_depth
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.fields import Fields, shown
from penstock.api.codecs.request_fields.hosted_tools import (
    decode_domains,
    decode_flat_location,
    decode_search_options,
    decode_skill_version,
)
from penstock.api.codecs.request_fields.tools import check_functions, decode_function_name
from penstock.dialog import (
    FunctionTool,
    HostedTool,
    PythonTool,
    SearchTool,
    ShellTool,
    SkillReference,
    ToolPolicy,
)

SEARCH_PREFIX: Final = "web_search_"
PYTHON_PREFIX: Final = "code_execution_"
# This version of the search filters its results with code.
SEARCH_WITH_PYTHON: Final = "web_search_20260209"


def decode_tools(
    fields: Fields, names: FieldPaths
) -> tuple[tuple[FunctionTool, ...], tuple[HostedTool, ...]]:
    """(the client's functions, tools that the server runs), both from `tools`."""
    functions: list[FunctionTool] = []
    hosted: list[HostedTool] = []
    for entry in fields.objects("tools"):
        kind = entry.string("type") or "custom"
        if kind == "custom":
            names.note_schema(len(functions), entry.name_of("input_schema"))
            functions.append(_function(entry))
            continue
        if kind.startswith(SEARCH_PREFIX):
            hosted.append(_search(entry))
            if kind == SEARCH_WITH_PYTHON:
                hosted.append(PythonTool())
        elif kind.startswith(PYTHON_PREFIX):
            hosted.append(PythonTool())
        else:
            entry.refuse(
                "type",
                f'must be "custom" with an `input_schema`, "{SEARCH_PREFIX}..." or'
                f' "{PYTHON_PREFIX}...", not {shown(kind)}',
                code="unsupported_value",
            )
        names.note_hosted(entry.path)
    check_functions(fields, functions)
    return tuple(functions), tuple(hosted)


def decode_hosted(fields: Fields, names: FieldPaths) -> tuple[HostedTool, ...]:
    """Server tools that other fields switch on: `web_search_options`, `enable_code_execution` and
    the skills of `container`."""
    hosted: list[HostedTool] = []
    search = decode_search_options(fields)
    if search is not None:
        names.note_hosted("web_search_options")
        hosted.append(search)
    if fields.boolean("enable_code_execution"):
        names.note_hosted("enable_code_execution")
        hosted.append(PythonTool())
    skills = _skills(fields)
    if skills:
        names.note_hosted("container")
        hosted.append(ShellTool(skills))
    return tuple(hosted)


def decode_tool_choice(fields: Fields, tools: tuple[FunctionTool, ...]) -> ToolPolicy:
    """`{type: auto | any | tool | none, name?, disable_parallel_tool_use?}`."""
    choice = fields.object("tool_choice")
    if choice is None:
        return ToolPolicy()
    choice.required_string("type")
    kind = choice.choice("type", ("auto", "any", "tool", "none"))
    parallel = not choice.boolean("disable_parallel_tool_use")
    if kind == "none":
        return ToolPolicy("none")
    if kind == "auto":
        return ToolPolicy("auto", parallel=parallel)
    if not tools:
        choice.refuse("type", f'is "{kind}", but the request has no tools of its own')
    if kind == "any":
        return ToolPolicy("required", parallel=parallel)
    name = choice.required_string("name")
    if all(tool.name != name for tool in tools):
        choice.refuse("name", f"names no tool of `tools`: {shown(name)}")
    return ToolPolicy("required", (name,), parallel)


def _function(entry: Fields) -> FunctionTool:
    name = decode_function_name(entry)
    schema = entry.object("input_schema")
    if schema is not None:
        check_depth(entry, "input_schema", schema.values)
    return FunctionTool(
        name=name,
        description=entry.string("description"),
        parameters=schema.values if schema is not None else None,
        strict=entry.boolean("strict") or False,
    )


def _search(entry: Fields) -> SearchTool:
    allowed, blocked = decode_domains(entry)
    return SearchTool(None, decode_flat_location(entry), allowed, blocked)


def _skills(fields: Fields) -> tuple[SkillReference, ...]:
    if type(fields.get("container")) is str:
        fields.refuse(
            "container", "names a container; none can be used again", code="unsupported_value"
        )
    container = fields.object("container")
    if container is None:
        return ()
    return tuple(_skill(entry) for entry in container.objects("skills"))


def _skill(entry: Fields) -> SkillReference:
    entry.choice("type", ("custom",))
    return SkillReference(entry.required_string("skill_id"), decode_skill_version(entry))
