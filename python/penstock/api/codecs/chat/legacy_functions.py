"""`functions` and `function_call`, which came before `tools` and `tool_choice`."""

from __future__ import annotations

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.fields import Fields, shown
from penstock.api.codecs.request_fields.tools import check_functions, decode_function
from penstock.dialog import FunctionTool, ToolPolicy


def decode_legacy_functions(fields: Fields, names: FieldPaths) -> tuple[FunctionTool, ...]:
    """The functions of the old form; none where it is not used."""
    if fields.get("functions") is None:
        return ()
    functions = tuple(decode_function(entry) for entry in fields.objects("functions"))
    if functions and fields.get("tools"):
        fields.refuse("functions", "cannot be used together with `tools`")
    check_functions(fields, functions, "functions")
    if functions:
        names.note("tools", "functions")
        names.note("tool_choice", "function_call")
    for index in range(len(functions)):
        names.note_schema(index, f"functions[{index}].parameters")
    return functions


def decode_function_choice(fields: Fields, functions: tuple[FunctionTool, ...]) -> ToolPolicy:
    """`auto`, `none` or `{name}`; an answer of the old form makes one call at most."""
    value = fields.get("function_call")
    if value is None:
        return ToolPolicy(parallel=False)
    if type(value) is str:
        mode = fields.choice("function_call", ("auto", "none"))
        return ToolPolicy("none" if mode == "none" else "auto", parallel=False)
    if type(value) is not dict:
        fields.refuse_type("function_call", '"auto", "none" or an object with a name')
    choice = fields.required_object("function_call")
    name = choice.required_string("name")
    if all(function.name != name for function in functions):
        choice.refuse("name", f"names no function of `functions`: {shown(name)}")
    return ToolPolicy("required", (name,), parallel=False)
