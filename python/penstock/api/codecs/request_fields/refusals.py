"""Raises InvalidRequest for request fields, with wording that all dialects share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import orjson

from penstock.base.errors import InvalidRequest

MAX_QUOTED_CHARS: Final = 80

_KINDS: Final = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
}


def refuse(path: str, why: str, *, code: str = "invalid_value") -> NoReturn:
    """Raise InvalidRequest for the field at `path`, with the message "`path` why"."""
    raise InvalidRequest(f"`{path}` {why}", field=path, code=code)


def refuse_missing(path: str, wanted: str) -> NoReturn:
    """Raise InvalidRequest for a required field that is absent. `wanted`: describes the value to
    send."""
    refuse(path, f"is required: {wanted}", code="missing_required_parameter")


def kind_of(value: Any) -> str:
    """Return the JSON type of a value, in words."""
    return _KINDS[type(value)]


def quoted(text: str) -> str:
    """Return a client's string in double quotes, cut after MAX_QUOTED_CHARS characters."""
    cut = text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "..."
    return orjson.dumps(cut).decode()


def one_of(allowed: Sequence[str]) -> str:
    """Return the values as a list in words: `"a", "b" or "c"`."""
    texts = [f'"{value}"' for value in allowed]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " or " + texts[-1]
