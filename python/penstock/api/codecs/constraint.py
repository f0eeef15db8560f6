"""`response_format` and `grammar`: what the answer must match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock.api.codecs.fields import Fields, depth_of
from penstock.api.codecs.names import FieldNames
from penstock.dialog import Constraint

MAX_SCHEMA_DEPTH: Final = 64
GRAMMAR_KINDS: Final = ("regex", "json_schema", "lark", "llguidance")


def decode_constraint(fields: Fields, names: FieldNames) -> Constraint | None:
    """At most one of the two fields may ask for something."""
    wanted = {"response_format": _response_format(fields), "grammar": _grammar(fields)}
    return _only_one(fields, wanted, names)


def decode_text_constraint(fields: Fields, names: FieldNames) -> Constraint | None:
    """As `decode_constraint`, for a dialect that has `text.format` too."""
    wanted = {
        "response_format": _response_format(fields),
        "text.format": _text_format(fields),
        "grammar": _grammar(fields),
    }
    return _only_one(fields, wanted, names)


def note_constraint(names: FieldNames, written: str) -> None:
    """`written`: where the client wrote what binds its answer, which errors name by its kind."""
    names.note("response_format", written)
    names.note("grammar", written)


def schema_text(fields: Fields, key: str) -> str:
    """The JSON text of the schema in a field. Raises InvalidRequest if it nests too deeply."""
    schema = fields.get(key)
    if schema is None:
        fields.refuse_missing(key, "a JSON schema")
    if type(schema) is not dict and type(schema) is not bool:
        fields.refuse_type(key, "a JSON schema: an object")
    check_depth(fields, key, schema)
    return orjson.dumps(schema).decode()


def check_depth(fields: Fields, key: str, value: Any) -> None:
    """Refuse what nests deeper than a schema may."""
    if depth_of(value, MAX_SCHEMA_DEPTH) > MAX_SCHEMA_DEPTH:
        fields.refuse(key, f"is nested too deeply; at most {MAX_SCHEMA_DEPTH} levels")


def _only_one(
    fields: Fields, wanted: Mapping[str, Constraint | None], names: FieldNames
) -> Constraint | None:
    given = [key for key, constraint in wanted.items() if constraint is not None]
    if len(given) > 1:
        fields.refuse(given[-1], f"cannot be used together with `{given[0]}`")
    if not given:
        return None
    note_constraint(names, given[0])
    return wanted[given[0]]


def _response_format(fields: Fields) -> Constraint | None:
    wanted = fields.object("response_format")
    if wanted is None or not _wants_schema(wanted):
        return None
    return _schema(wanted.required_object("json_schema"))


def _text_format(fields: Fields) -> Constraint | None:
    """`text.format`, where the schema is not nested."""
    text = fields.object("text")
    wanted = text.object("format") if text is not None else None
    if wanted is None or not _wants_schema(wanted):
        return None
    return _schema(wanted)


def _wants_schema(wanted: Fields) -> bool:
    if wanted.required_string("type") == "json_object":
        wanted.refuse(
            "type",
            'does not take "json_object"; send "json_schema" with a schema',
            code="unsupported_value",
        )
    return wanted.choice("type", ("text", "json_schema")) == "json_schema"


def _schema(owner: Fields) -> Constraint:
    owner.string("name")
    owner.string("description")
    strict = owner.boolean("strict")
    return Constraint("json_schema", schema_text(owner, "schema"), strict is not False)


def _grammar(fields: Fields) -> Constraint | None:
    grammar = fields.object("grammar")
    if grammar is None:
        return None
    grammar.required_string("type")
    kind = grammar.choice("type", GRAMMAR_KINDS)
    match kind:
        case "regex" | "lark":
            return Constraint(kind, grammar.required_string("value"))
        case "json_schema":
            return Constraint("json_schema", schema_text(grammar, "value"))
        case _:
            return Constraint("llguidance", _llguidance(grammar))


def _llguidance(grammar: Fields) -> str:
    value = grammar.required_object("value")
    for member in value.objects("grammars"):
        member.string("name")
        member.string("lark_grammar")
        member.object("json_schema")
    if not value.get("grammars"):
        value.refuse_missing("grammars", "an array of grammars")
    value.integer("max_tokens", 1)
    check_depth(grammar, "value", value.values)
    return orjson.dumps(value.values).decode()
