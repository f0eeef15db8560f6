"""Decodes the fields that all generating dialects have: sampling, length, stop strings, adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import orjson
from msgspec import UNSET

from penstock.api.codecs.request_fields.decode_body import decode_value
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.schema.constraints import AdapterGenerationSelection
from penstock.api.schema.fields import BreakerList
from penstock.api.schema.sampling import AnswerFields, SamplingFields
from penstock.dialog import AdapterRevision, Constraint, GenerateRequest, Limits, Sampling
from penstock.dialog.ranges import MAX_TOKEN_ID

SEED_MASK: Final = 2**63 - 1

_T = TypeVar("_T")


def decode_answer_fields(body: AnswerFields, constraint: Constraint | None) -> GenerateRequest:
    """Return a request without messages or prompt, from the fields that all generating dialects
    have."""
    return GenerateRequest(
        model=body.model or None,
        adapter=decode_adapter(body.adapter),
        cache_salt=body.cache_salt or "",
        sampling=_sampling(body),
        constraint=constraint,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos or False,
    )


def decode_limits(
    body: AnswerFields,
    limits: Mapping[str, int | None],
    max_rounds: int | None = None,
    truncate: bool | None = None,
) -> Limits:
    """Return the limits of an answer. `limits`: the values of `max_tokens` and its aliases, by
    field name. Raises InvalidRequest if these values differ or `min_tokens` is larger."""
    most = the_same(limits)
    least = body.min_tokens or 0
    if most is not None and least > most:
        refuse("min_tokens", f"must be at most the largest number of tokens, {most}")
    return Limits(
        max_tokens=most, max_rounds=max_rounds, truncate=truncate or False, min_tokens=least
    )


def the_same(fields: Mapping[str, _T | None]) -> _T | None:
    """Return the value of a field that has several names; None if it is absent. Raises
    InvalidRequest if two names have different values."""
    given = [(name, value) for name, value in fields.items() if value is not None]
    for name, value in given[1:]:
        if value != given[0][1]:
            refuse(name, f"differs from `{given[0][0]}`; send only one of them")
    return given[0][1] if given else None


def decode_stop(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return the stop strings as a tuple."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def decode_adapter(
    adapter: str | AdapterGenerationSelection | None,
) -> str | AdapterRevision | None:
    """Return the adapter's alias, or its revision if the request selects a generation."""
    if isinstance(adapter, AdapterGenerationSelection):
        return AdapterRevision(adapter.generation)
    return adapter


def _sampling(body: SamplingFields) -> Sampling:
    """Return the sampling parameters of a request."""
    penalties = {
        "repetition_penalty": body.repetition_penalty,
        "repeat_penalty": body.repeat_penalty,
    }
    return Sampling(
        temperature=body.temperature,
        # 0, -1 and null turn top-k off, even if the server has a default.
        top_k=None if body.top_k is UNSET else max(body.top_k or 0, 0),
        top_p=body.top_p,
        min_p=body.min_p,
        seed=_seed(body.seed),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=the_same(penalties),
        logit_bias=_logit_bias(body.logit_bias),
        dry_multiplier=body.dry_multiplier,
        dry_base=body.dry_base,
        dry_allowed_length=body.dry_allowed_length,
        dry_sequence_breakers=_breakers(body.dry_sequence_breakers),
    )


def _breakers(breakers: str | list[str] | None) -> tuple[str, ...] | None:
    """Return the sequence breakers of DRY; None if absent. Accepts the JSON text of an array too,
    which clients with a text box for this field send."""
    key = "dry_sequence_breakers"
    if isinstance(breakers, str):
        if not breakers.lstrip().startswith("["):
            refuse(key, "must be an array of strings, not a string", code="invalid_type")
        try:
            breakers = decode_value(orjson.loads(breakers), BreakerList, key)
        except orjson.JSONDecodeError:
            refuse(key, "must be an array of strings, or the JSON text of one")
    return None if breakers is None else tuple(breakers)


def _seed(seed: Any) -> int | None:
    """Return an integer seed as 63 bits; None for a value of any other type."""
    return seed & SEED_MASK if type(seed) is int else None


def _logit_bias(biases: dict[str, float] | None) -> dict[int, float] | None:
    """Return the biases by token id. The generator checks the ids against the vocabulary."""
    for key in biases or ():
        if not (key.isascii() and key.isdigit() and len(key) < 11 and int(key) <= MAX_TOKEN_ID):
            refuse("logit_bias", "must map token ids (as decimal strings) to numbers")
    return {int(key): bias for key, bias in biases.items()} if biases else None
