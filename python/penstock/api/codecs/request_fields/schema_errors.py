"""Turns msgspec's validation errors into InvalidRequest.

A msgspec error contains the path of the wrong value, such as `$.messages[2].content`. The message
is built from the schema type at this path: ranges, lengths, allowed strings. A schema type's
`Meta(extra={...})` may set `code` (error code of a wrong value), `wanted` (description of the right
value), `why` (message of a field in which only null is accepted) and `hint` (end of the message).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from penstock.api.codecs.request_fields.refusals import kind_of, one_of, quoted
from penstock.base.errors import InvalidRequest
from penstock.dialog.ranges import MAX_INTEGER

STEP: Final = re.compile(r"\.([^.\[\]`]+)|\[(\d+|\.\.\.)\]")
FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
PLURALS: Final[dict[tuple[type, ...], str]] = {
    (dict,): "objects",
    (str,): "strings",
    (int,): "integers",
}

Step = tuple[str, str]
"""(name, "") for a field, ("", index) for an array entry, ("", "...") for a dict entry."""


def mend_whole_numbers(error: msgspec.ValidationError, value: Any) -> bool:
    """Replace whole floats such as 3.0 with integers, in place, where `error` expects an integer.

    If the path leads through an array, the field is replaced in all entries. Return whether any
    value was replaced.
    """
    text, steps = _parse(error)
    if not (text.startswith("Expected `int") and text.endswith("got `float`")) or not steps:
        return False
    owners = [value]
    for step in steps[:-1]:
        owners = [child for owner in owners for child in _children(owner, step).values()]
    mended = False
    for owner in owners:
        for key, number in _children(owner, steps[-1]).items():
            if type(number) is float and number.is_integer():
                owner[key] = int(number)
                mended = True
    return mended


def invalid_request(
    error: msgspec.ValidationError, value: Any, kind: Any, root: str
) -> InvalidRequest:
    """Return the InvalidRequest for an error of `msgspec.convert(value, kind)`.

    `root`: the path of `value` in the body.
    """
    text, steps = _parse(error)
    field = FIELD.fullmatch(text)
    if field is not None:
        steps = [*steps, (field[2], "")]
    types, extra = _flatten(_type_info(kind))
    path = root
    for step in steps:
        if field is not None and field[1] == "contains unknown" and step is steps[-1]:
            return _unknown(_join(path, field[2][:80]), types)
        types, extra = _inside(types, extra, step, value)
        step = _resolve(step, types, value)
        path = f"{path}[{step[1]}]" if step[1].isdigit() else _join(path, step[0] or step[1])
        value = _child(value, step)
    if value is None and steps and steps[-1][0]:
        wanted = extra.get("wanted") or _describe(types, value)
        message = f"`{path}` is required: {wanted}"
        return InvalidRequest(message, field=path, code="missing_required_parameter")
    return _wrong(path or None, types, extra, value)


def _wrong(
    path: str | None, types: Sequence[inspect.Type], extra: dict[str, Any], value: Any
) -> InvalidRequest:
    """Return the error for a value that is present but wrong."""
    if "why" in extra:
        return InvalidRequest(f"`{path}` {extra['why']}", field=path, code=extra["code"])
    right_type = any(type(value) in _python_types(kind) for kind in types)
    wanted = extra.get("wanted") or _describe(types, value)
    message = f"`{path}` must be {wanted}, not {_shown(types, value, right_type)}"
    if "hint" in extra:
        message += f"; {extra['hint']}"
    code = extra.get("code", "invalid_value") if right_type else "invalid_type"
    return InvalidRequest(message, field=path, code=code)


def _unknown(path: str, types: Iterable[inspect.Type]) -> InvalidRequest:
    names = [f.encode_name for t in types if isinstance(t, inspect.StructType) for f in t.fields]
    return InvalidRequest(f"`{path}` is not known; fields are {', '.join(names)}", field=path)


def _parse(error: msgspec.ValidationError) -> tuple[str, list[Step]]:
    """Return (message, steps of the path) of a msgspec error."""
    text, found, place = str(error).rpartition(" - at `$")
    return (text, STEP.findall(place)) if found else (str(error), [])


@lru_cache(maxsize=64)
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _flatten(kind: inspect.Type) -> tuple[list[inspect.Type], dict[str, Any]]:
    """Return the member types of a union, and the merged `extra` of their Metas."""
    if isinstance(kind, inspect.Metadata):
        types, extra = _flatten(kind.type)
        return types, extra | (kind.extra or {})
    if isinstance(kind, inspect.UnionType):
        members = [_flatten(member) for member in kind.types]
        merged: dict[str, Any] = {}
        for _, extra in members:
            merged |= extra
        return [member for types, _ in members for member in types], merged
    return [kind], {}


def _inside(
    types: Sequence[inspect.Type], extra: dict[str, Any], step: Step, value: Any
) -> tuple[list[inspect.Type], dict[str, Any]]:
    """Return the types, and their `extra`, of the field or entry to which `step` leads; ([], {}) if
    the schema has no such field."""
    name, index = step
    for kind in _structs(types, value) if name else types:
        if name and isinstance(kind, inspect.StructType):
            for field in kind.fields:
                if field.encode_name == name:
                    return _flatten(field.type)
            if kind.tag_field == name:
                tags = [t.tag for t in types if isinstance(t, inspect.StructType)]
                return [inspect.LiteralType(tuple(tags))], extra
        elif isinstance(kind, inspect.ListType) and index.isdigit():
            return _flatten(kind.item_type)
        elif isinstance(kind, inspect.DictType) and not index.isdigit():
            return _flatten(kind.value_type)
    return [], {}


def _structs(types: Sequence[inspect.Type], value: Any) -> list[inspect.Type]:
    """Return the structs of a union. If the value's tag matches a struct, return only this
    struct."""
    structs = [kind for kind in types if isinstance(kind, inspect.StructType)]
    tagged = [
        kind
        for kind in structs
        if kind.tag_field and isinstance(value, dict) and value.get(kind.tag_field) == kind.tag
    ]
    return list(tagged or structs)


def _resolve(step: Step, types: Sequence[inspect.Type], value: Any) -> Step:
    """Return `step`, or the step to the wrong entry of a dict if msgspec named it only `...`.
    `types`: the types that entries may have."""
    if step[1] != "..." or not isinstance(value, dict):
        return step
    wrong = (key for key, entry in value.items() if not any(_fits(t, entry) for t in types))
    return (next(wrong, "..."), "")


def _fits(kind: inspect.Type, value: Any) -> bool:
    """Return whether a value is of type `kind` and within its range."""
    if type(value) not in _python_types(kind):
        return False
    least, most = getattr(kind, "ge", None), getattr(kind, "le", None)
    return (least is None or value >= least) and (most is None or value <= most)


def _children(owner: Any, step: Step) -> dict[Any, Any]:
    """Return the values in `owner` to which a step may lead, by key or index."""
    if isinstance(owner, list) and step[1]:
        return dict(enumerate(owner))
    if isinstance(owner, dict):
        return dict(owner) if step[1] else {k: owner[k] for k in (step[0],) if k in owner}
    return {}


def _child(owner: Any, step: Step) -> Any:
    if isinstance(owner, list) and step[1].isdigit():
        return owner[int(step[1])]
    return owner.get(step[0]) if isinstance(owner, dict) else None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _python_types(kind: inspect.Type) -> tuple[type, ...]:
    match kind:
        case inspect.BoolType():
            return (bool,)
        case inspect.IntType():
            return (int,)
        case inspect.FloatType():
            return (int, float)
        case inspect.StrType() | inspect.LiteralType():
            return (str,)
        case inspect.ListType():
            return (list,)
        case inspect.DictType() | inspect.StructType():
            return (dict,)
    return ()


def _describe(types: Sequence[inspect.Type], value: Any) -> str:
    """Return a description of the values that `types` accept, such as `a string or null`."""
    texts = dict.fromkeys(_describe_one(kind, value) for kind in types)
    wanted = [text for text in texts if text != "null"] or ["null"]
    return wanted[0] if len(wanted) == 1 else ", ".join(wanted[:-1]) + " or " + wanted[-1]


def _describe_one(kind: inspect.Type, value: Any) -> str:
    match kind:
        case inspect.NoneType():
            return "null"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "an integer" + _range(kind, value)
        case inspect.FloatType():
            return "a number" + _range(kind, value)
        case inspect.LiteralType():
            return one_of([str(allowed) for allowed in kind.values])
        case inspect.StrType(min_length=1, max_length=None):
            return "a non-empty string"
        case inspect.StrType():
            return "a string" + _length(kind, "characters")
        case inspect.ListType(min_length=1, max_length=None):
            return f"a non-empty array of {_entries(kind)}"
        case inspect.ListType():
            entries = _entries(kind)
            return "an array" + (_length(kind, entries) or f" of {entries}")
        case inspect.DictType():
            return "an object" + _length(kind, "fields")
    return "an object"


def _entries(kind: inspect.ListType) -> str:
    """Return the plural noun for the entries of an array type, such as `strings`."""
    types, _ = _flatten(kind.item_type)
    names = {_python_types(member) for member in types}
    return PLURALS.get(names.pop(), "entries") if len(names) == 1 else "entries"


def _range(kind: inspect.IntType | inspect.FloatType, value: Any) -> str:
    if kind.gt is not None:
        return f" above {kind.gt:g}"
    if kind.ge is None:
        return ""
    too_large = isinstance(value, int | float) and kind.le is not None and value > kind.le
    if kind.le is None or (kind.le == MAX_INTEGER and not too_large):
        return f" of at least {kind.ge}"
    return f" from {kind.ge} to {kind.le}"


def _length(kind: inspect.StrType | inspect.ListType | inspect.DictType, what: str) -> str:
    least, most = kind.min_length, kind.max_length
    if most is None:
        return ""
    return f" of {least} to {most} {what}" if least else f" of at most {most} {what}"


def _shown(types: Sequence[inspect.Type], value: Any, right_type: bool) -> str:
    """Return a description of a wrong value: its JSON type if that is wrong, else its length or the
    value."""
    if not right_type:
        return kind_of(value)
    if isinstance(value, str | list) and not value:
        return "an empty string" if isinstance(value, str) else "an empty array"
    if isinstance(value, str):
        lengths = [t for t in types if isinstance(t, inspect.StrType) and t.pattern is None]
        return f"one of {len(value)}" if lengths else quoted(value)
    return f"one of {len(value)}" if isinstance(value, list | dict) else str(value)
