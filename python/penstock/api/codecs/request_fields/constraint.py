"""Decodes `response_format`, `grammar`, `structured_outputs` and their aliases into a
constraint."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.json_body import depth_of
from penstock.api.codecs.request_fields.openai_compat import OPTION, OpenAICompat
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.schema import constraints as c
from penstock.api.schema.sampling import AnswerFields
from penstock.dialog import Constraint

MAX_SCHEMA_DEPTH: Final = 64
SPECIAL: Final = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
GBNF_RULE: Final = re.compile(r"(?m)^[ \t]*[\w-]+[ \t]*::=")
# Fields of older vLLM clients, llama.cpp and SGLang -> the fields of `structured_outputs` with the
# same meaning.
GUIDED_FIELDS: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}
STRUCTURED_OUTPUT_KINDS: Final = ("json", "regex", "choice", "grammar")
ANY_OBJECT: Final = Constraint("json_schema", '{"type":"object"}')

Format = c.TextFormat | c.JsonSchemaFormat | c.FlatJsonSchemaFormat | c.JsonObjectFormat


def decode_constraint(
    body: AnswerFields,
    field_paths: FieldPaths,
    compat: OpenAICompat,
    text_format: Format | None = None,
) -> Constraint | None:
    """Return the constraint on the answer; None if no field asks for one. `text_format`: the value
    of `text.format`.

    Raises InvalidRequest if several fields ask for a constraint.
    """
    wanted = {
        "response_format": _format(body.response_format, "response_format", compat),
        "text.format": _format(text_format, "text.format", compat),
        "grammar": _grammar(body.grammar),
        **_structured_outputs(body, compat),
    }
    given = [path for path, constraint in wanted.items() if constraint is not None]
    if len(given) > 1:
        refuse(given[-1], f"cannot be used together with `{given[0]}`")
    if not given:
        return None
    note_constraint(field_paths, given[0])
    return wanted[given[0]]


def note_constraint(field_paths: FieldPaths, path: str) -> None:
    """Note the path of the field that constrains the answer, so that errors of the grammar compiler
    name this field."""
    field_paths.note("response_format", path)
    field_paths.note("grammar", path)


def schema_text(schema: dict[str, Any] | bool, path: str) -> str:
    """Return a schema as JSON text. Raises InvalidRequest if it nests deeper than
    MAX_SCHEMA_DEPTH."""
    check_depth(schema, path)
    return orjson.dumps(schema).decode()


def check_depth(value: Any, path: str) -> None:
    """Raise InvalidRequest if a value nests deeper than MAX_SCHEMA_DEPTH."""
    if depth_of(value, MAX_SCHEMA_DEPTH) > MAX_SCHEMA_DEPTH:
        refuse(path, f"is nested too deeply; at most {MAX_SCHEMA_DEPTH} levels")


def _format(wanted: Format | None, path: str, compat: OpenAICompat) -> Constraint | None:
    match wanted:
        case c.JsonSchemaFormat(json_schema):
            return _schema(json_schema, f"{path}.json_schema")
        case c.FlatJsonSchemaFormat():
            return _schema(wanted, path)
        case c.JsonObjectFormat():
            if "json_object" not in compat:
                refuse(
                    f"{path}.type",
                    'does not take "json_object"; send "json_schema" with a schema, or start the'
                    f" server with `{OPTION}`",
                    code="unsupported_value",
                )
            return ANY_OBJECT
    return None


def _schema(named: c.NamedJsonSchema, path: str) -> Constraint:
    text = schema_text(named.schema, f"{path}.schema")
    return Constraint("json_schema", text, named.strict is not False, closed=True)


def _grammar(grammar: c.Grammar | None) -> Constraint | None:
    match grammar:
        case str():  # GBNF of llama.cpp's clients; "" is no grammar
            if grammar and not GBNF_RULE.search(grammar):
                wanted = "an object, or a grammar in llama.cpp's form"
                refuse("grammar", f"must be {wanted}, not another string", code="invalid_type")
            return Constraint("gbnf", grammar) if grammar else None
        case c.RegexGrammar(value):
            return Constraint("regex", value)
        case c.LarkGrammar(value):
            return Constraint("lark", value)
        case c.GbnfGrammar(value):
            return Constraint("gbnf", value)
        case c.SchemaGrammar(schema):
            return Constraint("json_schema", schema_text(schema, "grammar.value"))
        case c.LlguidanceGrammar(parts):
            for part in parts.grammars:
                check_depth(part.json_schema, "grammar.value")
            return Constraint("llguidance", orjson.dumps(msgspec.to_builtins(parts)).decode())
    return None


def _structured_outputs(body: AnswerFields, compat: OpenAICompat) -> Mapping[str, Constraint]:
    """Return the constraints that `structured_outputs` and GUIDED_FIELDS ask for, by field path."""
    wanted: dict[str, Constraint | None] = {}
    structured = body.structured_outputs
    if structured is not None:
        if structured.json_object:
            if "json_object" not in compat:
                refuse(
                    "structured_outputs.json_object",
                    'is not supported; send "json" with a schema, or start the server with'
                    f" `{OPTION}`",
                    code="unsupported_value",
                )
            wanted["structured_outputs.json_object"] = ANY_OBJECT
        for kind in STRUCTURED_OUTPUT_KINDS:
            path = f"structured_outputs.{kind}"
            wanted[path] = _structure(kind, getattr(structured, kind), path)
    for path, kind in GUIDED_FIELDS.items():
        same = _structure(kind, getattr(body, path), path)
        if same not in wanted.values():  # some clients send one constraint in two fields
            wanted[path] = same
    return {path: constraint for path, constraint in wanted.items() if constraint is not None}


def _structure(kind: str, value: Any, path: str) -> Constraint | None:
    if value is None:
        return None
    match kind:
        case "json":
            return Constraint("json_schema", _schema_or_its_text(value, path), closed=True)
        case "regex":
            return Constraint("regex", value)
        case "choice":
            return Constraint("regex", _alternatives(value))
    return Constraint("gbnf" if GBNF_RULE.search(value) else "lark", value)


def _schema_or_its_text(schema: dict[str, Any] | bool | str, path: str) -> str:
    if isinstance(schema, str):
        wanted = "must be a JSON schema: an object, or the JSON text of one"
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError:
            refuse(path, wanted)
        if not isinstance(schema, dict | bool):
            refuse(path, wanted, code="invalid_type")
    return schema_text(schema, path)


def _alternatives(choices: Sequence[str]) -> str:
    """Return a regular expression that matches each of the given texts and no other text."""
    return "|".join(SPECIAL.sub(r"\\\g<0>", text) for text in choices)
