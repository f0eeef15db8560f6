"""Reads fields of decoded JSON; whatever is wrong with one is a 400 that names it.

An absent field and a null are the same: not given. Booleans are not numbers.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import orjson

from penstock.base.errors import InvalidRequest

MAX_DEPTH: Final = 128
# They are made and walked through while nothing else of the process goes on: 0.1 s for so many
# arrays and objects, half a second for so many names or values.
MAX_CONTAINERS: Final = 500_000
MAX_NAMES: Final = 500_000
MAX_VALUES: Final = 2_000_000
# From here on the collector would look through them again and again while they are made.
MANY_CONTAINERS: Final = 10_000
MAX_SHOWN_CHARS: Final = 80
MAX_INTEGER: Final = 2**63 - 1

GZIP_MAGIC: Final = b"\x1f\x8b"

_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[{:,'))

_KINDS: Final = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
}


def decode_object(body: bytes) -> Fields:
    """The JSON object in `body`. Duplicate names: the last one counts, everywhere alike.

    Raises InvalidRequest for what is not UTF-8, not JSON (NaN and Infinity are not), not an object
    or nested deeper than MAX_DEPTH, or holds over MAX_CONTAINERS arrays and objects, MAX_NAMES
    names or MAX_VALUES values. Integers beyond 64 bits become floats.
    """
    if not body:
        raise InvalidRequest("the request has no body; send a JSON object", code="invalid_json")
    containers = body.count(b"{") + body.count(b"[")  # at most: some may stand in strings
    if containers > MAX_CONTAINERS or body.count(b":") > MAX_NAMES or body.count(b",") > MAX_VALUES:
        _check_numbers(body)
    try:
        with _uncollected(containers):
            value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if body.startswith(GZIP_MAGIC):
            raise InvalidRequest(
                "the body is compressed; send it as it is", code="invalid_json"
            ) from None
        raise InvalidRequest(
            f"the body is not valid JSON; what is wrong is at line {error.lineno}, column"
            f" {error.colno}",
            code="invalid_json",
        ) from None
    if type(value) is not dict:
        raise InvalidRequest(
            f"the body must be a JSON object, not {_KINDS[type(value)]}", code="invalid_json"
        )
    if containers > MAX_DEPTH:  # or it cannot be that deep
        _check_depth(value)
    return Fields(value)


def model_of(body: bytes) -> str | None:
    """The model that a body names, whatever else is wrong with it. Raises InvalidRequest."""
    return decode_object(body).string("model")


class Fields:
    """One object of the body. `path` leads to it, as clients write it: `messages[2].content`."""

    def __init__(self, values: dict[str, Any], path: str = "") -> None:
        self.values = values
        self.path = path

    def name_of(self, key: str) -> str:
        """The full path of a field of this object."""
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str) -> Any:
        """The decoded value, None where it is absent."""
        return self.values.get(key)

    def boolean(self, key: str) -> bool | None:
        value = self.values.get(key)
        if value is not None and type(value) is not bool:
            self.refuse_type(key, "true or false")
        return value

    def integer(self, key: str, least: int, most: int | None = None) -> int | None:
        """An integer in [least, most]; `most` None: MAX_INTEGER. 3.0 is one too (JSON Schema
        2020-12, 6.1.1), which is what clients without integers send."""
        value = self.values.get(key)
        if value is None:
            return None
        limit = MAX_INTEGER if most is None else most
        whole = int(value) if type(value) is float and value.is_integer() else value
        if type(whole) is not int:
            self.refuse_type(key, f"an integer {_range(least, most)}")
        if whole > limit:
            self.refuse(key, f"must be an integer from {least} to {limit}, not {value}")
        if whole < least:
            self.refuse(key, f"must be an integer {_range(least, most)}, not {value}")
        return whole

    def number(
        self, key: str, least: float, most: float | None = None, *, above: bool = False
    ) -> float | None:
        """A finite number in [least, most], or in (least, most] with `above`."""
        value = self.values.get(key)
        if value is None:
            return None
        wanted = f"a number above {least:g}" if above else f"a number {_range(least, most)}"
        if type(value) is not int and type(value) is not float:
            self.refuse_type(key, wanted)
        in_range = (value > least if above else value >= least) and (most is None or value <= most)
        if not in_range or not math.isfinite(value):
            self.refuse(key, f"must be {wanted}, not {value}")
        return float(value)

    def string(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and type(value) is not str:
            self.refuse_type(key, "a string")
        return value

    def required_string(self, key: str) -> str:
        value = self.string(key)
        if value is None:
            self.refuse_missing(key, "a string")
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str | None:
        """One of a few strings."""
        value = self.string(key)
        if value is not None and value not in allowed:
            self.refuse(key, f"must be {one_of(allowed)}, not {shown(value)}")
        return value

    def object(self, key: str) -> Fields | None:
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) is not dict:
            self.refuse_type(key, "an object")
        return Fields(value, self.name_of(key))

    def required_object(self, key: str) -> Fields:
        value = self.object(key)
        if value is None:
            self.refuse_missing(key, "an object")
        return value

    def array(self, key: str, wanted: str) -> list[Any] | None:
        value = self.values.get(key)
        if value is not None and type(value) is not list:
            self.refuse_type(key, wanted)
        return value

    def objects(self, key: str) -> Iterator[Fields]:
        """The objects of an array; none where it is absent."""
        for index, value in enumerate(self.array(key, "an array of objects") or ()):
            item = f"{key}[{index}]"
            if type(value) is not dict:
                self.refuse(item, f"must be an object, not {kind_of(value)}", code="invalid_type")
            yield Fields(value, self.name_of(item))

    def strings(self, key: str, most: int) -> tuple[str, ...] | None:
        """An array of at most `most` non-empty strings."""
        values = self.array(key, "an array of strings")
        if values is None:
            return None
        if len(values) > most:
            self.refuse(key, f"may hold at most {most} strings, not {len(values)}")
        for index, value in enumerate(values):
            if type(value) is not str:
                self.refuse(
                    f"{key}[{index}]",
                    f"must be a string, not {kind_of(value)}",
                    code="invalid_type",
                )
            if not value:
                self.refuse(f"{key}[{index}]", "must not be empty")
        return tuple(values)

    def refuse(self, key: str, why: str, *, code: str = "invalid_value") -> NoReturn:
        """Raise InvalidRequest for a field: "`path` why"."""
        name = self.name_of(key)
        raise InvalidRequest(f"`{name}` {why}", field=name, code=code)

    def refuse_type(self, key: str, wanted: str) -> NoReturn:
        value = self.values.get(key)
        self.refuse(key, f"must be {wanted}, not {kind_of(value)}", code="invalid_type")

    def refuse_missing(self, key: str, wanted: str) -> NoReturn:
        self.refuse(key, f"is required: {wanted}", code="missing_required_parameter")


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    return _KINDS[type(value)]


def shown(text: str) -> str:
    """A client's string in a message: quoted, and cut if it is long."""
    cut = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
    return orjson.dumps(cut).decode()


def one_of(allowed: Sequence[str]) -> str:
    """`"a", "b" or "c"`."""
    quoted = [f'"{value}"' for value in allowed]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]


def depth_of(value: Any, most: int) -> int:
    """How deep containers nest in `value`; `most` + 1 where it is more than `most`."""
    depth = 0
    level = [value] if type(value) in (dict, list) else []
    while level and depth <= most:
        depth += 1
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
    return depth


def _check_numbers(body: bytes) -> None:
    """Counts outside of strings: text may hold as many brackets, colons and commas as it likes."""
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * (MAX_NAMES + MAX_VALUES):
        raise _too_many(MAX_VALUES, "values")
    outside = b"".join(unescaped.translate(None, _NOT_STRUCTURE).split(b'"')[::2])
    for marks, most, what in (
        (b"[{", MAX_CONTAINERS, "arrays and objects"),
        (b":", MAX_NAMES, "names"),
        (b",", MAX_VALUES, "values"),
    ):
        if sum(outside.count(mark) for mark in marks) > most:
            raise _too_many(most, what)


def _too_many(most: int, what: str) -> InvalidRequest:
    return InvalidRequest(f"the body holds more than {most} {what}", code="invalid_json")


@contextmanager
def _uncollected(containers: int) -> Iterator[None]:
    """No garbage collection while so many are made, if they are many."""
    if containers < MANY_CONTAINERS or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _check_depth(value: dict[str, Any]) -> None:
    if depth_of(value, MAX_DEPTH) > MAX_DEPTH:
        raise InvalidRequest(
            f"the body is nested too deeply; at most {MAX_DEPTH} levels", code="invalid_json"
        )


def _range(least: float, most: float | None) -> str:
    return f"of at least {least:g}" if most is None else f"from {least:g} to {most:g}"
