"""`response_format`, `grammar` and `structured_outputs`: what the answer must match."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.fields import Fields, depth_of
from penstock.api.codecs.request_fields.openai_compat import AS_SPECIFIED, OPTION, Accepted
from penstock.dialog import Constraint

MAX_SCHEMA_DEPTH: Final = 64
SPECIAL: Final = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
GRAMMAR_KINDS: Final = ("regex", "json_schema", "lark", "gbnf", "llguidance")
GBNF_RULE: Final = re.compile(r"(?m)^[ \t]*[\w-]+[ \t]*::=")
STRUCTURES: Final = ("json", "regex", "choice", "grammar")
# Fields that ask for the same without it: of older requests to vLLM, of llama.cpp and of SGLang.
ALONE: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}
UNSUPPORTED_STRUCTURES: Final = ("json_object", "structural_tag")
MAX_CHOICES: Final = 1024
ANY_OBJECT: Final = Constraint("json_schema", '{"type":"object"}')


def decode_constraint(
    fields: Fields, names: FieldPaths, accepted: Accepted = AS_SPECIFIED
) -> Constraint | None:
    """At most one of the fields may ask for something."""
    wanted = {
        "response_format": _response_format(fields, accepted),
        "grammar": _grammar(fields),
        **_structured_outputs(fields, accepted),
    }
    return _only_one(fields, wanted, names)


def decode_text_constraint(
    fields: Fields, names: FieldPaths, accepted: Accepted = AS_SPECIFIED
) -> Constraint | None:
    """As `decode_constraint`, for a dialect that has `text.format` too."""
    wanted = {
        "response_format": _response_format(fields, accepted),
        "text.format": _text_format(fields, accepted),
        "grammar": _grammar(fields),
        **_structured_outputs(fields, accepted),
    }
    return _only_one(fields, wanted, names)


def note_constraint(names: FieldPaths, written: str) -> None:
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
    fields: Fields, wanted: Mapping[str, Constraint | None], names: FieldPaths
) -> Constraint | None:
    given = [key for key, constraint in wanted.items() if constraint is not None]
    if len(given) > 1:
        fields.refuse(given[-1], f"cannot be used together with `{given[0]}`")
    if not given:
        return None
    note_constraint(names, given[0])
    return wanted[given[0]]


def _response_format(fields: Fields, accepted: Accepted) -> Constraint | None:
    wanted = fields.object("response_format")
    if wanted is None:
        return None
    match _format_type(wanted, accepted):
        case "json_schema":
            return _schema(wanted.required_object("json_schema"))
        case "json_object":
            return ANY_OBJECT
        case _:
            return None


def _text_format(fields: Fields, accepted: Accepted) -> Constraint | None:
    """`text.format`, where the schema is not nested."""
    text = fields.object("text")
    wanted = text.object("format") if text is not None else None
    if wanted is None:
        return None
    match _format_type(wanted, accepted):
        case "json_schema":
            return _schema(wanted)
        case "json_object":
            return ANY_OBJECT
        case _:
            return None


def _format_type(wanted: Fields, accepted: Accepted) -> str | None:
    if wanted.required_string("type") != "json_object":
        return wanted.choice("type", ("text", "json_schema"))
    if "json_object" not in accepted:
        wanted.refuse(
            "type",
            f'does not take "json_object"; send "json_schema" with a schema, or start the server'
            f" with `{OPTION}`",
            code="unsupported_value",
        )
    return "json_object"


def _schema(owner: Fields) -> Constraint:
    owner.string("name")
    owner.string("description")
    strict = owner.boolean("strict")
    text = schema_text(owner, "schema")
    return Constraint("json_schema", text, strict is not False, closed=True)


def _grammar(fields: Fields) -> Constraint | None:
    written = fields.get("grammar")  # a string of llama.cpp's clients, empty for none
    if type(written) is str and (not written or GBNF_RULE.search(written)):
        return Constraint("gbnf", written) if written else None
    grammar = fields.object("grammar")
    if grammar is None:
        return None
    grammar.required_string("type")
    kind = grammar.choice("type", GRAMMAR_KINDS)
    match kind:
        case "regex" | "lark" | "gbnf":
            return Constraint(kind, grammar.required_string("value"))
        case "json_schema":
            return Constraint("json_schema", schema_text(grammar, "value"))
        case _:
            return Constraint("llguidance", _llguidance(grammar))


def _structured_outputs(fields: Fields, accepted: Accepted) -> dict[str, Constraint]:
    """What `structured_outputs` and the fields of ALONE say: path -> constraint."""
    wanted: dict[str, Constraint | None] = {}
    structured = fields.object("structured_outputs")
    if structured is not None:
        for key in UNSUPPORTED_STRUCTURES:
            if structured.get(key) and key not in accepted:
                why = 'is not supported; send "json" with a schema'
                if key == "json_object":
                    why += f", or start the server with `{OPTION}`"
                structured.refuse(key, why, code="unsupported_value")
        if structured.boolean("json_object"):
            wanted[structured.name_of("json_object")] = ANY_OBJECT
        for kind in STRUCTURES:
            wanted[structured.name_of(kind)] = _structure(structured, kind, kind)
    for key, kind in ALONE.items():
        same = _structure(fields, key, kind)
        if same not in wanted.values():  # some clients write both
            wanted[key] = same
    return {path: constraint for path, constraint in wanted.items() if constraint is not None}


def _structure(owner: Fields, key: str, kind: str) -> Constraint | None:
    if owner.get(key) is None:
        return None
    match kind:
        case "json":
            return Constraint("json_schema", _schema_or_its_text(owner, key), closed=True)
        case "regex":
            return Constraint("regex", owner.required_string(key))
        case "choice":
            choices = owner.strings(key, MAX_CHOICES)
            if not choices:
                owner.refuse(key, "must hold at least one string")
            return Constraint("regex", "|".join(map(_literal, choices)))
        case _:
            return _written(owner.required_string(key))


def _written(grammar: str) -> Constraint:
    """A grammar in either form that clients send without its name."""
    return Constraint("gbnf" if GBNF_RULE.search(grammar) else "lark", grammar)


def _schema_or_its_text(owner: Fields, key: str) -> str:
    text = owner.get(key)
    if type(text) is not str:
        return schema_text(owner, key)
    try:
        schema = orjson.loads(text)
    except orjson.JSONDecodeError:
        owner.refuse(key, "must be a JSON schema: an object, or the JSON text of one")
    return schema_text(Fields(owner.values | {key: schema}, owner.path), key)


def _literal(text: str) -> str:
    """A regular expression that matches the text alone."""
    return SPECIAL.sub(r"\\\g<0>", text)


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
