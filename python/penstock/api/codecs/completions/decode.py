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
WANTED_PROMPT: Final = "a string, an array of token ids, or an array of either"
MAX_PROMPTS: Final = 2048


def decode(body: bytes) -> Decoded:
    """Raises InvalidRequest naming the field that is wrong."""
    fields = decode_object(body)
    n = fields.integer("n", 1, MAX_N) or 1
    stream = fields.boolean("stream") or False
    top_logprobs = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    echo = fields.boolean("echo") or False
    prompts = _prompts(fields)
    request = GenerateRequest(
        model=fields.string("model") or None,
        adapter=decode_adapter(fields),
        prompt=prompts[0] if len(prompts) == 1 else None,
        prompts=prompts if len(prompts) > 1 else (),
        suffix=fields.string("suffix") or None,
        sampling=decode_sampling(fields),
        constraint=decode_constraint(fields),
        limits=decode_limits(fields, least_tokens=0 if echo else 1),
        stop=decode_stop(fields),
        n=n,
        best_of=_best_of(fields, n, stream),
        top_logprobs=top_logprobs,
        ignore_eos=fields.boolean("ignore_eos") or False,
        echo=echo,
    )
    return Decoded(request, stream)


def _best_of(fields: Fields, n: int, stream: bool) -> int | None:
    """How many answers are made of each prompt, where it is more than are asked for."""
    best_of = fields.integer("best_of", 1, MAX_N)
    if best_of is None or best_of == n:
        return None
    if best_of < n:
        fields.refuse("best_of", f"must be at least `n` ({n}), not {best_of}")
    if stream:
        fields.refuse("best_of", "cannot be streamed: answers are ranked when all are finished")
    return best_of


def _prompts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    """One or several. An empty text may be meant: a model with a BOS token can begin with it."""
    value: Any = fields.get("prompt")
    if value is None:
        fields.refuse_missing("prompt", WANTED_PROMPT)
    if type(value) is str:
        return (value,)
    if type(value) is not list:
        fields.refuse_type("prompt", WANTED_PROMPT)
    if not value:
        fields.refuse("prompt", "must not be empty")
    if type(value[0]) is int:
        return (_token_ids(fields, "prompt", value),)
    if len(value) > MAX_PROMPTS:
        fields.refuse("prompt", f"may hold at most {MAX_PROMPTS} prompts, not {len(value)}")
    return tuple(_one_of_several(fields, f"prompt[{i}]", item) for i, item in enumerate(value))


def _one_of_several(fields: Fields, key: str, value: Any) -> str | tuple[int, ...]:
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
