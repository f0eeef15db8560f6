"""What completions take as prompts and embeddings as inputs: text or token ids, one or several."""

from __future__ import annotations

from typing import Any, Final

from penstock.api.codecs.request_fields.fields import Fields, kind_of
from penstock.api.codecs.request_fields.sampling import MAX_TOKEN_ID

WANTED: Final = "a string, an array of token ids, or an array of either"
MAX_INPUTS: Final = 2048

Input = str | tuple[int, ...]


def decode_inputs(fields: Fields, key: str) -> tuple[Input, ...]:
    """One or several; texts may be empty, arrays not. Raises InvalidRequest naming the entry."""
    value: Any = fields.get(key)
    if value is None:
        fields.refuse_missing(key, WANTED)
    if type(value) is str:
        return (value,)
    if type(value) is not list:
        fields.refuse_type(key, WANTED)
    if not value:
        fields.refuse(key, "must not be empty")
    if type(value[0]) is int:
        return (_token_ids(fields, key, value),)
    if len(value) > MAX_INPUTS:
        fields.refuse(key, f"may hold at most {MAX_INPUTS} entries, not {len(value)}")
    return tuple(_one_of_several(fields, f"{key}[{i}]", item) for i, item in enumerate(value))


def _one_of_several(fields: Fields, key: str, value: Any) -> Input:
    if isinstance(value, str):
        return value
    if type(value) is not list:
        wanted = "a string or an array of token ids"
        fields.refuse(key, f"must be {wanted}, not {kind_of(value)}", code="invalid_type")
    return _token_ids(fields, key, value)


def _token_ids(fields: Fields, key: str, values: list[Any]) -> tuple[int, ...]:
    if not values:
        fields.refuse(key, "must not be empty")
    for index, value in enumerate(values):
        if type(value) is not int:
            fields.refuse(
                f"{key}[{index}]", f"must be a token id, not {kind_of(value)}", code="invalid_type"
            )
        if not 0 <= value <= MAX_TOKEN_ID:
            fields.refuse(f"{key}[{index}]", f"must be a token id, not {value}")
    return tuple(values)
