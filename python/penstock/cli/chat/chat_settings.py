"""The settings of a chat that commands can set: their names, ranges, values and checks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec
import orjson
from msgspec import inspect

from penstock.api.chats.answer_request import HOSTED, REQUEST_FIELDS
from penstock.api.codecs.chat.decode import decode
from penstock.api.schema.chat.request import ChatCompletionRequest
from penstock.base.errors import InvalidRequest
from penstock.dialog import GenerateRequest
from penstock.dialog.ranges import MAX_INTEGER

FIELDS: Final = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "stop"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_sequence_breakers"),
    *("enable_thinking", "reasoning_effort", "response_format", "grammar"),
    *("agent_permission", "max_tool_rounds"),
)
"""The fields of a chat completion request that `/set` can set."""
DEFAULT_WORD: Final = "default"
_SWITCH: Final = {"on": True, "yes": True, "off": False, "no": False}
_RANGES: Final = {
    "seed": "an integer",
    "top_k": "an integer; 0: all tokens",
    "stop": "a text, or a JSON list of texts",
    "response_format": "JSON, as in the HTTP API",
    "grammar": "JSON, as in the HTTP API",
    "logit_bias": 'JSON: {"token id": -100 to 100}',
    "dry_sequence_breakers": "a JSON list of texts",
    "reasoning_effort": "off, minimal, low, medium, high, max",
}
_PLACEHOLDER: Final = [{"role": "user", "content": "."}]


def checked_request(settings: Mapping[str, Any]) -> GenerateRequest:
    """Return a request with the settings of a chat and without messages. It has no model, because
    the backend chose one. Raises InvalidRequest, which names the wrong field."""
    fields = {name: value for name, value in settings.items() if name in REQUEST_FIELDS}
    body = {**fields, "messages": _PLACEHOLDER, "stream": True, "truncate_sequence": True}
    request = decode(orjson.dumps(body)).request
    chosen = settings.get("tools") or {}
    hosted = tuple(tool for name, tool in HOSTED.items() if chosen.get(name))
    return msgspec.structs.replace(request, model=None, messages=(), part_paths=(), hosted=hosted)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if the settings of a chat are not valid."""
    seed = settings.get("seed")
    if seed is not None and type(seed) is not int:
        raise InvalidRequest("`seed` must be an integer", field="seed")
    if not isinstance(settings.get("system", ""), str | None):
        raise InvalidRequest("`system` must be a text", field="system")
    if not isinstance(settings.get("tools", {}), dict | None):
        raise InvalidRequest("`tools` must be an object", field="tools")
    checked_request(settings)


def with_value(settings: Mapping[str, Any], name: str, text: str) -> dict[str, Any]:
    """Return settings in which the field `name` has the value that `text` gives; "" and "default"
    remove it. Raises InvalidRequest."""
    if name not in FIELDS:
        raise InvalidRequest(f"there is no setting {name}; /set lists them")
    rest = {key: value for key, value in settings.items() if key != name}
    if text in ("", DEFAULT_WORD):
        return rest
    changed = {**rest, name: _value(name, text)}
    try:
        check_settings(changed)
    except InvalidRequest as error:
        raise InvalidRequest(f"{error.message} ({name}: {range_of(name)})") from None
    return changed


def shown(value: Any) -> str:
    """Return the value of a setting for people."""
    match value:
        case bool():
            return "on" if value else "off"
        case str():
            return value
        case float():
            return f"{value:g}"
        case _:
            return orjson.dumps(value).decode()


def range_of(name: str) -> str:
    """Return the values that a setting may have, for people."""
    if name in _RANGES:
        return _RANGES[name]
    match _type_of(name):
        case inspect.BoolType():
            return "on or off"
        case inspect.LiteralType(values=values):
            return ", ".join(map(str, values[:-1])) + f" or {values[-1]}"
        case inspect.IntType() | inspect.FloatType() as number:
            return _number_range(number)
        case other:
            raise AssertionError(other)


def _number_range(number: inspect.IntType | inspect.FloatType) -> str:
    unit = "an integer" if isinstance(number, inspect.IntType) else "a number"
    if number.gt is not None:
        return f"{unit} above {number.gt:g}"
    if number.le is None or number.le >= MAX_INTEGER:
        return f"{unit} from {number.ge:g}"
    return f"{number.ge:g} to {number.le:g}"


def _value(name: str, text: str) -> Any:
    """Return the JSON value of a text that a person typed."""
    kind = _type_of(name)
    if isinstance(kind, inspect.BoolType) and text in _SWITCH:
        return _SWITCH[text]
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    takes_text = isinstance(kind, inspect.StrType | inspect.UnionType)
    return text if takes_text and isinstance(value, int | float | None) else value


def _type_of(name: str) -> inspect.Type:
    kind = _types()[name]
    while True:
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            given = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
            if len(given) > 1:
                return kind
            kind = given[0]
        else:
            return kind


@cache
def _types() -> Mapping[str, inspect.Type]:
    described = inspect.type_info(ChatCompletionRequest)
    assert isinstance(described, inspect.StructType)
    return {field.name: field.type for field in described.fields}
