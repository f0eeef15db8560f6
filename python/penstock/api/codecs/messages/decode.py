"""Decodes the body of a messages request into a `GenerateRequest`."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.messages.content_blocks import (
    decode_messages,
    decode_system,
    prepare_blocks,
)
from penstock.api.codecs.messages.tools import decode_hosted, decode_tool_choice, decode_tools
from penstock.api.codecs.request_fields.answer_prefix import split_answer_prefix, without_reasoning
from penstock.api.codecs.request_fields.constraint import (
    decode_constraint,
    note_constraint,
    schema_text,
)
from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.codecs.request_fields.extensions import decode_conversation_fields
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.openai_compat import NO_COMPAT, OpenAICompat
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.request_fields.reasoning import decode_effort, decode_reasoning
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.schema.messages.request import MessagesRequest
from penstock.dialog import Constraint, ReasoningPolicy

THINKING: Final[dict[str, bool]] = {"enabled": True, "disabled": False}
"""`thinking.type` -> whether to think. With other types the chat template decides."""


def decode(body: bytes, compat: OpenAICompat = NO_COMPAT) -> Decoded:
    """Decode a messages request. Raises InvalidRequest, which names the wrong field."""
    asked = decode_body(body, MessagesRequest, prepare_blocks)
    field_paths = FieldPaths()
    field_paths.note("stop", "stop_sequences")
    tools, in_tools = decode_tools(asked.tools or (), field_paths)
    hosted = (*in_tools, *decode_hosted(asked, field_paths))
    part_paths = PartPaths()
    conversation = (*decode_system(asked.system), *decode_messages(asked.messages, part_paths))
    messages, answer_prefix = split_answer_prefix(conversation)
    request = msgspec.structs.replace(
        decode_conversation_fields(asked, _constraint(asked, field_paths, compat)),
        messages=messages,
        part_paths=part_paths.of(messages),
        answer_prefix=answer_prefix,
        tools=tools,
        hosted=hosted,
        tool_policy=decode_tool_choice(asked.tool_choice, tools, hosted),
        reasoning=_reasoning(asked, answer_prefix),
        stop=tuple(asked.stop_sequences or ()),
    )
    return Decoded(request, asked.stream or False, field_paths=field_paths)


def _reasoning(asked: MessagesRequest, answer_prefix: str) -> ReasoningPolicy:
    thinking, config = asked.thinking, asked.output_config
    enabled = THINKING.get(thinking.type) if thinking is not None else None
    policy = decode_reasoning(asked, enabled)
    if answer_prefix:
        return without_reasoning(policy)
    given = config.effort if config is not None else None
    effort = decode_effort(given, "output_config.effort")
    if effort is None or policy.effort is not None or policy.enabled is False:
        return policy
    return ReasoningPolicy(policy.enabled, effort)  # `effort` does not turn thinking on or off


def _constraint(
    asked: MessagesRequest, field_paths: FieldPaths, compat: OpenAICompat
) -> Constraint | None:
    """Return the constraint on the answer from `output_config.format`, from the older
    `output_format`, or from the fields that all dialects have. Raises InvalidRequest if several are
    given."""
    own = decode_constraint(asked, field_paths, compat)
    config, older = asked.output_config, asked.output_format
    wanted = config.format if config is not None else None
    path = "output_config.format"
    if wanted is not None and older is not None:
        refuse("output_format", "cannot be used together with `output_config.format`")
    if wanted is None:
        wanted, path = older, "output_format"
    if wanted is None:
        return own
    if own is not None:
        refuse(path, "cannot be used together with `grammar` or `response_format`")
    note_constraint(field_paths, path)
    return Constraint("json_schema", schema_text(wanted.schema, f"{path}.schema"), closed=True)
