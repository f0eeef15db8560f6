"""Parses the JSON of a request body within limits on its depth and size."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import orjson

from penstock.api.codecs.request_fields.refusals import kind_of
from penstock.base.errors import InvalidRequest

MAX_DEPTH: Final = 128
# Parsing and decoding block the whole process: for 0.1 s with this many arrays and objects, for
# 0.5 s with this many names or values.
MAX_CONTAINERS: Final = 500_000
MAX_NAMES: Final = 500_000
MAX_VALUES: Final = 2_000_000
# From this number on, the garbage collector would scan the containers repeatedly during parsing.
MANY_CONTAINERS: Final = 10_000

GZIP_MAGIC: Final = b"\x1f\x8b"

_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[{:,'))


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`. If a name occurs twice, the last value counts. Integers
    beyond 64 bits become floats.

    Raises InvalidRequest if the body is not UTF-8, not JSON (NaN and Infinity are not allowed) or
    not an object, nests deeper than MAX_DEPTH, or has more than MAX_CONTAINERS arrays and objects,
    MAX_NAMES names or MAX_VALUES values.
    """
    if not body:
        raise InvalidRequest("the request has no body; send a JSON object", code="invalid_json")
    containers = count_containers(body)
    if containers > MAX_CONTAINERS or body.count(b":") > MAX_NAMES or body.count(b",") > MAX_VALUES:
        _check_counts(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if body.startswith(GZIP_MAGIC):
            raise InvalidRequest(
                "the body is compressed; send it uncompressed", code="invalid_json"
            ) from None
        raise InvalidRequest(
            f"the body is not valid JSON; the error is at line {error.lineno}, column"
            f" {error.colno}",
            code="invalid_json",
        ) from None
    if type(value) is not dict:
        raise InvalidRequest(
            f"the body must be a JSON object, not {kind_of(value)}", code="invalid_json"
        )
    if containers > MAX_DEPTH and depth_of(value, MAX_DEPTH) > MAX_DEPTH:
        raise InvalidRequest(
            f"the body is nested too deeply; at most {MAX_DEPTH} levels", code="invalid_json"
        )
    return value


def count_containers(body: bytes) -> int:
    """Return an upper bound of the number of arrays and objects: brackets in strings count too."""
    return body.count(b"{") + body.count(b"[")


@contextmanager
def without_collection(containers: int) -> Iterator[None]:
    """Pause the garbage collector in this context if at least MANY_CONTAINERS containers are
    created."""
    if containers < MANY_CONTAINERS or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def depth_of(value: Any, most: int) -> int:
    """Return how deep arrays and objects nest in `value`, at most `most` + 1."""
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


def objects_in(values: object) -> list[dict[str, Any]]:
    """Return the objects in a parsed array; [] if `values` is not an array."""
    entries = values if isinstance(values, list) else []
    return [entry for entry in entries if isinstance(entry, dict)]


def _check_counts(body: bytes) -> None:
    """Raise InvalidRequest if the body has too many containers, names or values. Brackets, colons
    and commas in strings do not count."""
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
