"""The body of a legacy completion request -> GenerateRequest."""

from __future__ import annotations

from typing import Final

from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.request_fields.constraint import decode_constraint
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.fields import Fields, decode_object
from penstock.api.codecs.request_fields.openai_compat import AS_SPECIFIED, Accepted
from penstock.api.codecs.request_fields.sampling import (
    MAX_N,
    MAX_TOP_LOGPROBS,
    decode_adapter,
    decode_cache_salt,
    decode_limits,
    decode_sampling,
    decode_stop,
    decode_stop_token_ids,
)
from penstock.api.codecs.request_fields.text_or_token_ids import decode_inputs
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


def decode(body: bytes, accepted: Accepted = AS_SPECIFIED) -> Decoded:
    """Raises InvalidRequest naming the field that is wrong."""
    fields = decode_object(body)
    n = fields.integer("n", 1, MAX_N) or 1
    stream = fields.boolean("stream") or False
    names = FieldPaths()
    names.note("top_logprobs", "logprobs")
    top_logprobs = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    echo = fields.boolean("echo") or False
    # An empty text may be meant: a model with a BOS token can begin with it.
    prompts = decode_inputs(fields, "prompt")
    request = GenerateRequest(
        model=fields.string("model") or None,
        adapter=decode_adapter(fields),
        cache_salt=decode_cache_salt(fields),
        prompt=prompts[0] if len(prompts) == 1 else None,
        prompts=prompts if len(prompts) > 1 else (),
        suffix=fields.string("suffix") or None,
        sampling=decode_sampling(fields),
        constraint=decode_constraint(fields, names, accepted),
        limits=decode_limits(fields, least_tokens=0 if echo else 1),
        stop=decode_stop(fields),
        stop_token_ids=decode_stop_token_ids(fields),
        n=n,
        best_of=_best_of(fields, n, stream),
        top_logprobs=top_logprobs,
        ignore_eos=fields.boolean("ignore_eos") or False,
        echo=echo,
    )
    return Decoded(request, stream, names=names)


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
