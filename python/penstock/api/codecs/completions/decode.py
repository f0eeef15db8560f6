"""The body of a legacy completion request -> GenerateRequest."""

from __future__ import annotations

from typing import Any, Final

from penstock.api.codecs.constraint import decode_constraint
from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.fields import Fields, decode_object, kind_of
from penstock.api.codecs.sampling import (
    MAX_N,
    MAX_TOKEN_ID,
    MAX_TOP_LOGPROBS,
    decode_adapter,
    decode_limits,
    decode_sampling,
    decode_stop,
)
from penstock.dialog import GenerateRequest

# Accepted with a value of any type, and without effect; so is every field named nowhere here.
# The specification keeps the agentic, session, file, search and thinking fields out of this schema.
IGNORED: Final = (
    "user",
    "stream_options",
    "metadata",
    "service_tier",
    "parallel_tool_calls",
    "store",
    "tools",
    "tool_choice",
)
WANTED_PROMPT: Final = "a string, an array with one string, or an array of token ids"


def decode(body: bytes) -> Decoded:
    """Raises InvalidRequest naming the field that is wrong."""
    fields = decode_object(body)
    n = fields.integer("n", 1, MAX_N) or 1
    _check_best_of(fields, n)
    if fields.string("suffix"):
        fields.refuse(
            "suffix", "is not supported: the model cannot fill in", code="unsupported_value"
        )
    top_logprobs = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    echo = fields.boolean("echo") or False
    if echo and top_logprobs is not None:
        fields.refuse(
            "echo",
            "cannot be used together with `logprobs`: the prompt's are not computed",
            code="unsupported_value",
        )
    request = GenerateRequest(
        model=fields.string("model") or None,
        adapter=decode_adapter(fields),
        prompt=_prompt(fields),
        sampling=decode_sampling(fields),
        constraint=decode_constraint(fields),
        limits=decode_limits(fields),
        stop=decode_stop(fields),
        n=n,
        top_logprobs=top_logprobs,
        ignore_eos=fields.boolean("ignore_eos") or False,
        echo=echo,
    )
    return Decoded(request, fields.boolean("stream") or False)


def _check_best_of(fields: Fields, n: int) -> None:
    best_of = fields.integer("best_of", 1, MAX_N)
    if best_of is not None and best_of != n:
        fields.refuse(
            "best_of",
            f"must equal `n` ({n}), not {best_of}: answers are not ranked",
            code="unsupported_value",
        )


def _prompt(fields: Fields) -> str | tuple[int, ...]:
    """An empty text may be meant: a model with a BOS token can begin with it."""
    value: Any = fields.get("prompt")
    if value is None:
        fields.refuse_missing("prompt", WANTED_PROMPT)
    if type(value) is str:
        return value
    if type(value) is not list:
        fields.refuse_type("prompt", WANTED_PROMPT)
    if not value:
        fields.refuse("prompt", "must not be empty")
    first = value[0]
    if type(first) is int:
        return _token_ids(fields, "prompt", value)
    if type(first) is not str and type(first) is not list:
        fields.refuse(
            "prompt[0]",
            f"must be a string or a token id, not {kind_of(first)}",
            code="invalid_type",
        )
    if len(value) > 1:
        fields.refuse(
            "prompt",
            f"holds {len(value)} prompts; send one request for each",
            code="unsupported_value",
        )
    if isinstance(first, str):
        return first
    return _token_ids(fields, "prompt[0]", first)


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
