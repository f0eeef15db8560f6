"""Decodes `functions` and `function_call`, the predecessors of `tools` and `tool_choice`."""

from __future__ import annotations

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.codecs.request_fields.tools import check_functions, check_named, decode_function
from penstock.api.schema.chat.request import ChatCompletionRequest
from penstock.dialog import FunctionTool, ToolPolicy


def decode_legacy_functions(
    body: ChatCompletionRequest, field_paths: FieldPaths
) -> tuple[FunctionTool, ...]:
    """Return the functions in `functions`, or () if the field is absent or empty."""
    if not body.functions:
        return ()
    if body.tools:
        refuse("functions", "cannot be used together with `tools`")
    functions = tuple(
        decode_function(entry, f"functions[{index}]", "parameters")
        for index, entry in enumerate(body.functions)
    )
    check_functions(functions, "functions")
    field_paths.note("tools", "functions")
    field_paths.note("tool_choice", "function_call")
    for index in range(len(functions)):
        field_paths.note_schema(index, f"functions[{index}].parameters")
    return functions


def decode_function_choice(
    body: ChatCompletionRequest, functions: tuple[FunctionTool, ...]
) -> ToolPolicy:
    """Return the tool policy that `function_call` asks for. It allows one call at most, because the
    legacy answer has no place for more."""
    choice = body.function_call
    if choice is None or isinstance(choice, str):
        return ToolPolicy("none" if choice == "none" else "auto", parallel=False)
    check_named(choice.name, functions, "function_call.name", "functions")
    return ToolPolicy("required", (choice.name,), parallel=False)
