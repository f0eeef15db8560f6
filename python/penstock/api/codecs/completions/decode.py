"""Decodes the body of a text completion request into a `GenerateRequest`."""

from __future__ import annotations

import msgspec

from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.request_fields.constraint import decode_constraint
from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.openai_compat import NO_COMPAT, OpenAICompat
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.codecs.request_fields.sampling import (
    decode_answer_fields,
    decode_limits,
    decode_stop,
)
from penstock.api.codecs.request_fields.text_or_token_ids import decode_inputs
from penstock.api.schema.completions import CompletionRequest


def decode(body: bytes, compat: OpenAICompat = NO_COMPAT) -> Decoded:
    """Decode a text completion request. Raises InvalidRequest, which names the wrong field."""
    asked = decode_body(body, CompletionRequest)
    field_paths = FieldPaths()
    field_paths.note("top_logprobs", "logprobs")
    # An empty prompt is allowed: a model with a BOS token can start from BOS alone.
    prompts = decode_inputs(asked.prompt, "prompt")
    most = {"max_tokens": asked.max_tokens, "max_completion_tokens": asked.max_completion_tokens}
    if not asked.echo:
        for name, tokens in most.items():
            if tokens == 0:
                refuse(name, "must be an integer of at least 1, not 0; 0 needs `echo`")
    request = msgspec.structs.replace(
        decode_answer_fields(asked, decode_constraint(asked, field_paths, compat)),
        prompt=prompts[0] if len(prompts) == 1 else None,
        prompts=prompts if len(prompts) > 1 else (),
        suffix=asked.suffix or None,
        limits=decode_limits(asked, most, truncate=asked.truncate_sequence),
        stop=decode_stop(asked.stop),
        n=asked.n or 1,
        best_of=_best_of(asked),
        top_logprobs=asked.logprobs,
        echo=asked.echo or False,
    )
    return Decoded(request, asked.stream or False, field_paths=field_paths)


def _best_of(asked: CompletionRequest) -> int | None:
    """Return the number of answers to generate per prompt; None if all of them are sent."""
    best_of, n = asked.best_of, asked.n or 1
    if best_of is None or best_of == n:
        return None
    if best_of < n:
        refuse("best_of", f"must be at least `n` ({n}), not {best_of}")
    if asked.stream:
        refuse("best_of", "cannot be streamed: answers are ranked when all are finished")
    return best_of
