"""The sampling, length and stop fields that the dialects share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import orjson

from penstock.api.codecs.request_fields.fields import Fields, kind_of
from penstock.dialog import AdapterRevision, Limits, Sampling

MAX_STOP_STRINGS: Final = 64
MAX_STOP_TOKENS: Final = 64
MAX_BREAKERS: Final = 64
MAX_N: Final = 128
MAX_TOP_LOGPROBS: Final = 20
MAX_SALT_CHARS: Final = 256
MAX_TOKEN_ID: Final = 2**31 - 1
SEED_MASK: Final = 2**63 - 1
GENERATION: Final = re.compile(r"[0-9a-f]{64}")

_T = TypeVar("_T")


def decode_sampling(fields: Fields) -> Sampling:
    """Every range as spec/decisions.md gives it."""
    return Sampling(
        temperature=fields.number("temperature", 0, 2),
        top_k=_top_k(fields),
        top_p=fields.number("top_p", 0, 1),
        min_p=fields.number("min_p", 0, 1),
        seed=_seed(fields),
        presence_penalty=fields.number("presence_penalty", -2, 2),
        frequency_penalty=fields.number("frequency_penalty", -2, 2),
        repetition_penalty=_either(
            fields,
            ("repetition_penalty", "repeat_penalty"),
            lambda key: fields.number(key, 0, above=True),
        ),
        logit_bias=_logit_bias(fields),
        dry_multiplier=fields.number("dry_multiplier", 0),
        dry_base=fields.number("dry_base", 1),
        dry_allowed_length=fields.integer("dry_allowed_length", 0),
        dry_sequence_breakers=_breakers(fields),
    )


def decode_limits(fields: Fields, least_tokens: int = 1) -> Limits:
    """`max_completion_tokens` is an alias of `max_tokens`; both may be sent if they agree."""
    names = ("max_tokens", "max_completion_tokens")
    most = _either(fields, names, lambda key: fields.integer(key, least_tokens))
    return Limits(
        max_tokens=most,
        truncate=fields.boolean("truncate_sequence") or False,
        min_tokens=decode_min_tokens(fields, most),
    )


def decode_min_tokens(fields: Fields, most: int | None) -> int:
    """How many tokens an answer of at most `most` has at least."""
    least = fields.integer("min_tokens", 0) or 0
    if most is not None and least > most:
        fields.refuse("min_tokens", f"must be at most the largest number of tokens, {most}")
    return least


def decode_stop(fields: Fields) -> tuple[str, ...]:
    """One string or up to 64."""
    value = fields.get("stop")
    if type(value) is str:
        if not value:
            fields.refuse("stop", "must not be an empty string")
        return (value,)
    if value is not None and type(value) is not list:
        fields.refuse_type("stop", "a string or an array of strings")
    return fields.strings("stop", MAX_STOP_STRINGS) or ()


def decode_stop_token_ids(fields: Fields) -> tuple[int, ...]:
    """Up to 64 of them."""
    values = fields.array("stop_token_ids", "an array of token ids") or ()
    if len(values) > MAX_STOP_TOKENS:
        fields.refuse("stop_token_ids", f"may hold at most {MAX_STOP_TOKENS}, not {len(values)}")
    for index, value in enumerate(values):
        key = f"stop_token_ids[{index}]"
        if type(value) is not int:
            fields.refuse(key, f"must be a token id, not {kind_of(value)}", code="invalid_type")
        if not 0 <= value <= MAX_TOKEN_ID:
            fields.refuse(key, f"must be a token id, not {value}")
    return tuple(values)


def decode_cache_salt(fields: Fields) -> str:
    """Empty where there is none."""
    salt = fields.string("cache_salt")
    if salt is None:
        return ""
    if not 1 <= len(salt) <= MAX_SALT_CHARS:
        fields.refuse("cache_salt", f"must have from 1 to {MAX_SALT_CHARS} characters")
    return salt


def decode_adapter(fields: Fields) -> str | AdapterRevision | None:
    """An alias, or an object naming a generation."""
    value = fields.get("adapter")
    if value is None:
        return None
    if type(value) is str:
        if not value:
            fields.refuse("adapter", "must not be an empty string")
        return value
    if type(value) is not dict:
        fields.refuse_type("adapter", "an alias or an object {generation}")
    generation = fields.required_object("adapter").required_string("generation")
    assert generation is not None
    if not GENERATION.fullmatch(generation):
        fields.refuse("adapter.generation", "must be 64 hexadecimal digits")
    return AdapterRevision(generation)


def _either(fields: Fields, names: tuple[str, str], read: Callable[[str], _T | None]) -> _T | None:
    """A field that has two names."""
    first, second = map(read, names)
    if first is not None and second is not None and first != second:
        fields.refuse(names[1], f"differs from `{names[0]}`; send only one of them")
    return second if first is None else first


def _top_k(fields: Fields) -> int | None:
    """0 and -1 switch it off, whatever the server's default, and so does a null."""
    value = fields.integer("top_k", -1)
    if value is None and "top_k" not in fields.values:
        return None
    return max(value or 0, 0)


def _breakers(fields: Fields) -> tuple[str, ...] | None:
    """An array, or the JSON text of one, which is what clients send that have a text box for it."""
    key = "dry_sequence_breakers"
    text = fields.get(key)
    if type(text) is str and text.lstrip().startswith("["):
        try:
            fields = Fields(fields.values | {key: orjson.loads(text)}, fields.path)
        except orjson.JSONDecodeError:
            fields.refuse(key, "is not the JSON text of an array of strings")
    return fields.strings(key, MAX_BREAKERS)


def _seed(fields: Fields) -> int | None:
    """Of any type, says the specification; only an integer has an effect."""
    value = fields.get("seed")
    return value & SEED_MASK if type(value) is int else None


def _logit_bias(fields: Fields) -> dict[int, float] | None:
    """Token id -> bias. That the ids are known is checked where the vocabulary is."""
    biases = fields.object("logit_bias")
    if biases is None:
        return None
    decoded: dict[int, float] = {}
    for key in biases.values:
        if not (key.isascii() and key.isdigit() and len(key) < 11 and int(key) <= MAX_TOKEN_ID):
            fields.refuse("logit_bias", "must map token ids (as decimal strings) to numbers")
        bias = biases.number(key, -100, 100)
        if bias is None:
            biases.refuse_type(key, "a number from -100 to 100")
        decoded[int(key)] = bias
    return decoded or None
