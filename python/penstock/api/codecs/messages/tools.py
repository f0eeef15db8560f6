"""Decodes `tools`, `tool_choice` and `container` of a messages request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.hosted_tools import (
    decode_domains,
    decode_location,
    decode_search_options,
    decode_skill_version,
)
from penstock.api.codecs.request_fields.refusals import quoted, refuse, refuse_missing
from penstock.api.codecs.request_fields.tools import check_functions, check_named, decode_function
from penstock.api.schema.messages import request as m
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
# With this version of web search, the model filters results with code, so Python is turned on too.
SEARCH_WITH_PYTHON: Final = "web_search_20260209"


def decode_tools(
    tools: Sequence[m.MessagesTool], field_paths: FieldPaths
) -> tuple[tuple[FunctionTool, ...], tuple[HostedTool, ...]]:
    """Return the client's functions and the server-side tools in `tools`."""
    functions: list[FunctionTool] = []
    hosted: list[HostedTool] = []
    for index, entry in enumerate(tools):
        path, kind = f"tools[{index}]", entry.type or "custom"
        if kind == "custom":
            field_paths.note_schema(len(functions), f"{path}.input_schema")
            functions.append(decode_function(entry, path, "input_schema"))
            continue
        if kind.startswith(SEARCH_PREFIX):
            location = decode_location(entry.user_location)
            domains = decode_domains(entry)
            hosted.append(SearchTool(None, location, *domains, max_uses=entry.max_uses))
            if kind == SEARCH_WITH_PYTHON:
                hosted.append(PythonTool())
        elif kind.startswith(PYTHON_PREFIX):
            hosted.append(PythonTool())
        else:
            refuse(
                f"{path}.type",
                f'must be "custom" with an `input_schema`, "{SEARCH_PREFIX}..." or'
                f' "{PYTHON_PREFIX}...", not {quoted(kind)}',
                code="unsupported_value",
            )
        field_paths.note_hosted(path)
    check_functions(functions)
    return tuple(functions), tuple(hosted)


def decode_hosted(asked: m.MessagesRequest, field_paths: FieldPaths) -> tuple[HostedTool, ...]:
    """Return the server-side tools that `web_search_options`, `enable_code_execution` and the
    skills of `container` request."""
    hosted: list[HostedTool] = []
    search = decode_search_options(asked.web_search_options)
    if search is not None:
        field_paths.note_hosted("web_search_options")
        hosted.append(search)
    if asked.enable_code_execution:
        field_paths.note_hosted("enable_code_execution")
        hosted.append(PythonTool())
    skills = _skills(asked.container)
    if skills:
        field_paths.note_hosted("container")
        hosted.append(ShellTool(skills))
    return tuple(hosted)


def decode_tool_choice(
    choice: m.MessagesToolChoice | None,
    tools: tuple[FunctionTool, ...],
    hosted: tuple[HostedTool, ...] = (),
) -> ToolPolicy:
    """Return the tool policy that `tool_choice` asks for. `any` is satisfied by server-side tools
    too; only functions can be chosen by name. Raises InvalidRequest if a call is required and no
    tool matches."""
    if choice is None:
        return ToolPolicy()
    parallel = not choice.disable_parallel_tool_use
    if choice.type == "none":
        return ToolPolicy("none")
    if choice.type == "auto":
        return ToolPolicy("auto", parallel=parallel)
    if not tools and not hosted:
        refuse("tool_choice.type", f'is "{choice.type}", but the request has no tools')
    if choice.type == "any":
        return ToolPolicy("required", parallel=parallel)
    if choice.name is None:
        refuse_missing("tool_choice.name", "the name of a tool")
    check_named(choice.name, tools, "tool_choice.name")
    return ToolPolicy("required", (choice.name,), parallel)


def _skills(container: m.SkillContainer | str | None) -> tuple[SkillReference, ...]:
    if isinstance(container, str):
        refuse("container", "names a container; none can be used again", code="unsupported_value")
    skills = container.skills if container is not None else None
    return tuple(
        SkillReference(
            skill.skill_id,
            decode_skill_version(skill.version, f"container.skills[{index}].version"),
        )
        for index, skill in enumerate(skills or ())
    )
