"""The body of a messages request -> GenerateRequest."""

from __future__ import annotations

from typing import Final

from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.messages.content_blocks import decode_messages, decode_system
from penstock.api.codecs.messages.tools import decode_hosted, decode_tool_choice, decode_tools
from penstock.api.codecs.request_fields.answer_prefix import split_answer_prefix, without_reasoning
from penstock.api.codecs.request_fields.constraint import (
    decode_constraint,
    note_constraint,
    schema_text,
)
from penstock.api.codecs.request_fields.extensions import (
    decode_permissions,
    decode_requested_files,
    decode_run_limits,
    decode_session,
)
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.fields import Fields, decode_object
from penstock.api.codecs.request_fields.openai_compat import AS_SPECIFIED, Accepted
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.request_fields.reasoning import decode_effort, decode_reasoning
from penstock.api.codecs.request_fields.sampling import (
    MAX_STOP_STRINGS,
    MAX_TOP_LOGPROBS,
    decode_adapter,
    decode_cache_salt,
    decode_sampling,
    decode_stop_token_ids,
)
from penstock.base.errors import InvalidRequest
from penstock.dialog import Constraint, GenerateRequest, ReasoningPolicy

# Accepted with a value of any type, and without effect; so is every field named nowhere here, and
# `cache_control` wherever it stands: the cache needs no marks.
IGNORED: Final = ("metadata", "service_tier", "cache_control", "thinking.budget_tokens")
THINKING: Final[dict[str | None, bool | None]] = {
    "enabled": True,
    "disabled": False,
    "adaptive": None,
    "between_tools": None,
}


def decode(body: bytes, accepted: Accepted = AS_SPECIFIED) -> Decoded:
    """Raises InvalidRequest naming the field that is wrong."""
    fields = decode_object(body)
    stream = fields.boolean("stream") or False
    names = FieldPaths()
    names.note("stop", "stop_sequences")
    tools, hosted = decode_tools(fields, names)
    _check_logprobs(fields)
    part_paths = PartPaths()
    said = (*decode_system(fields), *decode_messages(fields, part_paths))
    messages, answer_prefix = split_answer_prefix(fields, said)
    request = GenerateRequest(
        model=fields.string("model") or None,
        adapter=decode_adapter(fields),
        cache_salt=decode_cache_salt(fields),
        messages=messages,
        part_paths=part_paths.of(messages),
        answer_prefix=answer_prefix,
        tools=tools,
        hosted=(*hosted, *decode_hosted(fields, names)),
        permissions=decode_permissions(fields, stream),
        files=decode_requested_files(fields),
        session=decode_session(fields),
        tool_policy=decode_tool_choice(fields, tools),
        sampling=decode_sampling(fields),
        constraint=_constraint(fields, names, accepted),
        limits=decode_run_limits(fields),
        reasoning=_reasoning(fields, answer_prefix),
        stop=fields.strings("stop_sequences", MAX_STOP_STRINGS) or (),
        stop_token_ids=decode_stop_token_ids(fields),
        ignore_eos=fields.boolean("ignore_eos") or False,
    )
    return Decoded(request, stream, names=names)


def _check_logprobs(fields: Fields) -> None:
    """Valid or not is all that matters: a message has no place for them."""
    fields.boolean("logprobs")
    fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)


def _reasoning(fields: Fields, answer_prefix: str) -> ReasoningPolicy:
    thinking = fields.object("thinking")
    enabled = None
    if thinking is not None:
        thinking.required_string("type")
        enabled = THINKING[thinking.choice("type", tuple(filter(None, THINKING)))]
    policy = decode_reasoning(fields, enabled)
    if answer_prefix:
        return without_reasoning(fields, policy)
    config = fields.object("output_config")
    effort = decode_effort(config, "effort") if config is not None else None
    if effort is None or policy.effort is not None or policy.enabled is False:
        return policy
    return ReasoningPolicy(policy.enabled, effort)  # says how hard to think, not whether


def _constraint(fields: Fields, names: FieldPaths, accepted: Accepted) -> Constraint | None:
    """`output_config.format`, or the `output_format` of older clients, or one of the service's own
    fields."""
    own = decode_constraint(fields, names, accepted)
    config = fields.object("output_config")
    wanted = config.object("format") if config is not None else None
    older = fields.object("output_format")
    if wanted is not None and older is not None:
        fields.refuse("output_format", "cannot be used together with `output_config.format`")
    wanted = wanted or older
    if wanted is None:
        return own
    if own is not None:
        raise InvalidRequest(
            f"`{wanted.path}` cannot be used together with `grammar` or `response_format`",
            field=wanted.path,
        )
    wanted.required_string("type")
    wanted.choice("type", ("json_schema",))
    note_constraint(names, wanted.path)
    return Constraint("json_schema", schema_text(wanted, "schema"), closed=True)
