"""Decodes the body of a responses request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.api.codecs.request_fields.constraint import decode_constraint
from penstock.api.codecs.request_fields.decode_body import decode_body, decode_value
from penstock.api.codecs.request_fields.extensions import decode_requested_files
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.hosted_tools import decode_hosted_tools
from penstock.api.codecs.request_fields.namespaces import Namespaces
from penstock.api.codecs.request_fields.openai_compat import NO_COMPAT, OPTION, OpenAICompat
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.request_fields.reasoning import OFF, decode_effort
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.codecs.request_fields.sampling import (
    decode_answer_fields,
    decode_limits,
    decode_stop,
)
from penstock.api.codecs.request_fields.tools import (
    decode_functions,
    decode_tool_choice,
    prepare_tools,
)
from penstock.api.codecs.responses.echoed_fields import echoed
from penstock.api.codecs.responses.input_items import (
    Items,
    decode_input,
    prepare_input,
    references,
)
from penstock.api.schema.responses.input_items import InputItem
from penstock.api.schema.responses.request_and_resource import Include, OpenResponsesCreateRequest
from penstock.dialog import (
    FunctionTool,
    GenerateRequest,
    HostedTool,
    Limits,
    ReasoningPolicy,
    ToolPolicy,
)

LOGPROBS: Final = "message.output_text.logprobs"


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded body.

    `request`: contains only the messages of this turn, without `instructions` and without the
    conversation of `previous_id`. `references`: ids of the stored items to which `input` refers
    (see `resolve_item_references`). `input`: the items, kept only if there are references.
    `echoed`: the request's fields that the resource repeats. `field_paths`: maps field names in
    errors to paths in the body. `namespaces`: the namespaces of the functions.
    """

    request: GenerateRequest
    echoed: dict[str, Any]
    stream: bool = False
    background: bool = False
    store: bool = True
    instructions: str | None = None
    previous_id: str | None = None
    references: tuple[str, ...] = ()
    input: str | list[InputItem] = ""
    field_paths: FieldPaths = msgspec.field(default_factory=FieldPaths)
    namespaces: Namespaces = msgspec.field(default_factory=Namespaces)


def decode(body: bytes, compat: OpenAICompat = NO_COMPAT) -> ResponsesRequest:
    """Decode a responses request. Raises InvalidRequest, which names the wrong field."""
    asked = decode_body(body, OpenResponsesCreateRequest, _prepare)
    _check_parallel_calls(asked, compat)
    store, background = asked.store is not False, asked.background or False
    if background and not store:
        refuse("background", "cannot be used with `store: false`: there is nothing to poll")
    referred = references(asked.input)
    part_paths = PartPaths()
    messages = decode_input(asked.input, {}, part_paths)
    if not messages and not referred:
        refuse("input", "says nothing: it needs a message, a call or a result")
    field_paths = FieldPaths()
    field_paths.note("messages", "input")
    namespaces = Namespaces()
    tools = decode_functions(asked.tools or (), field_paths, namespaces)
    hosted = decode_hosted_tools(asked.tools or (), field_paths)
    limits = _limits(asked)
    text_format = asked.text.format if asked.text is not None else None
    constraint = decode_constraint(asked, field_paths, compat, text_format)
    request = msgspec.structs.replace(
        decode_answer_fields(asked, constraint),
        messages=messages,
        part_paths=part_paths.of(messages),
        tools=tools,
        hosted=hosted,
        files=decode_requested_files(asked.files),
        tool_policy=_tool_policy(asked, tools, hosted),
        limits=limits,
        reasoning=_reasoning(asked),
        stop=decode_stop(asked.stop),
        n=asked.n or 1,
        top_logprobs=_top_logprobs(asked),
    )
    return ResponsesRequest(
        request=request,
        input=asked.input if referred else "",
        echoed=echoed(asked, limits, store, background),
        stream=asked.stream or False,
        background=background,
        store=store,
        instructions=asked.instructions or None,
        previous_id=asked.previous_response_id,
        references=referred,
        field_paths=field_paths,
        namespaces=namespaces,
    )


def resolve_item_references(asked: ResponsesRequest, known: Items) -> ResponsesRequest:
    """Return the request with item references in `input` replaced by the stored items. `known`: the
    stored items by id; references to other ids are left out."""
    if not asked.references:
        return asked
    part_paths = PartPaths()
    messages = decode_input(asked.input, known, part_paths)
    request = msgspec.structs.replace(
        asked.request, messages=messages, part_paths=part_paths.of(messages)
    )
    return msgspec.structs.replace(asked, request=request)


def check_include(values: Sequence[Any]) -> None:
    """Raise InvalidRequest if a value of the query parameter `include` is unknown."""
    decode_value(list(values), list[Include], "include")


def _prepare(values: dict[str, Any]) -> None:
    prepare_tools(values)
    prepare_input(values)


def _check_parallel_calls(asked: OpenResponsesCreateRequest, compat: OpenAICompat) -> None:
    # `tools: []` allows no calls at all: a coding agent sends it with `parallel_tool_calls: false`.
    one_call = asked.parallel_tool_calls is False and asked.tools != []
    if one_call and "parallel_tool_calls" not in compat:
        refuse(
            "parallel_tool_calls",
            "cannot be false; leave it out: a function that `tool_choice` names is called once; or"
            f" start the server with `{OPTION}`",
            code="unsupported_value",
        )


def _tool_policy(
    asked: OpenResponsesCreateRequest,
    tools: tuple[FunctionTool, ...],
    hosted: tuple[HostedTool, ...],
) -> ToolPolicy:
    policy = decode_tool_choice(asked.tool_choice, tools, hosted)
    if asked.parallel_tool_calls is False:
        return msgspec.structs.replace(policy, parallel=False)
    return policy


def _limits(asked: OpenResponsesCreateRequest) -> Limits:
    most = {
        "max_output_tokens": asked.max_output_tokens,
        "max_completion_tokens": asked.max_completion_tokens,
        "max_tokens": asked.max_tokens,
    }
    return decode_limits(asked, most, asked.max_tool_rounds, asked.truncation == "auto")


def _reasoning(asked: OpenResponsesCreateRequest) -> ReasoningPolicy:
    given = asked.reasoning.effort if asked.reasoning is not None else None
    effort = decode_effort(given, "reasoning.effort")
    if effort is None:
        return ReasoningPolicy()
    return ReasoningPolicy(enabled=False) if effort in OFF else ReasoningPolicy(True, effort)


def _top_logprobs(asked: OpenResponsesCreateRequest) -> int | None:
    """Return the number of alternatives per token; None for no logprobs. `logprobs: true`,
    `top_logprobs` > 0 and `message.output_text.logprobs` in `include` each turn logprobs on."""
    top = asked.top_logprobs
    if top and asked.logprobs is False:
        refuse("top_logprobs", "needs `logprobs: true`")
    if asked.logprobs or top or LOGPROBS in (asked.include or ()):
        return top or 0
    return None
