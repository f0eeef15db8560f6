"""The body of a responses request -> what to generate and how to answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.api.codecs.request_fields.constraint import decode_text_constraint
from penstock.api.codecs.request_fields.extensions import decode_requested_files
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.fields import Fields, decode_object, shown
from penstock.api.codecs.request_fields.hosted_tools import decode_hosted_tools
from penstock.api.codecs.request_fields.namespaces import Namespaces
from penstock.api.codecs.request_fields.openai_compat import AS_SPECIFIED, OPTION, Accepted
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.request_fields.reasoning import OFF, decode_effort
from penstock.api.codecs.request_fields.sampling import (
    MAX_N,
    MAX_TOP_LOGPROBS,
    decode_adapter,
    decode_cache_salt,
    decode_min_tokens,
    decode_sampling,
    decode_stop,
    decode_stop_token_ids,
)
from penstock.api.codecs.request_fields.tools import decode_functions, decode_tool_choice
from penstock.api.codecs.responses.echoed_fields import echoed
from penstock.api.codecs.responses.input_items import Items, decode_input, references
from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    FunctionTool,
    GenerateRequest,
    HostedTool,
    Limits,
    ReasoningPolicy,
    ToolPolicy,
)

# Accepted with a value of any type, and without effect; so is every field named nowhere here.
IGNORED: Final = (
    "enable_thinking",
    "reasoning_effort",
    "truncate_sequence",
    "session_id",
    "agent_permission",
    "code_execution_permission",
    "web_search_options",
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
)
# Refused with any value but null: to ignore them would change what is answered.
REFUSED: Final = {
    "max_tool_calls": "is not supported; `max_tool_rounds` bounds the rounds of the server's tools",
    "conversation": "is not supported; continue with `previous_response_id`",
    "prompt": "is not supported: there are no stored prompts; send `instructions` and `input`",
}
HOSTED_KINDS: Final = ("web_search", "web_search_preview", "code_interpreter", "shell")
LOGPROBS: Final = "message.output_text.logprobs"
INCLUDE: Final = (
    "file_search_call.results",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "reasoning.encrypted_content",
    LOGPROBS,
)
SUMMARIES: Final = ("auto", "concise", "detailed")
MAX_METADATA: Final = 16
TOKEN_LIMITS: Final = ("max_output_tokens", "max_completion_tokens", "max_tokens")


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A body understood.

    `request`: its messages are of this turn alone, without `instructions` and without what
    `previous_id` continues. `references`: ids of stored items that `input` refers to, see
    `resolve_item_references`. `echoed`: the fields that the resource repeats. `fields`: the body,
    if there are
    references. `names`: how the client wrote its fields. `namespaces`: those of its functions.
    """

    request: GenerateRequest
    echoed: dict[str, Any]
    stream: bool = False
    background: bool = False
    store: bool = True
    instructions: str | None = None
    previous_id: str | None = None
    references: tuple[str, ...] = ()
    fields: Fields | None = None
    names: FieldPaths = msgspec.field(default_factory=FieldPaths)
    namespaces: Namespaces = msgspec.field(default_factory=Namespaces)


def decode(body: bytes, accepted: Accepted = AS_SPECIFIED) -> ResponsesRequest:
    """Raises InvalidRequest naming the field that is wrong."""
    fields = decode_object(body)
    _refuse_unsupported(fields, accepted)
    store, background = _flag(fields, "store", default=True), _flag(fields, "background")
    if background and not store:
        fields.refuse("background", "cannot be used with `store: false`: there is nothing to poll")
    referred = references(fields)
    part_paths = PartPaths()
    messages = decode_input(fields, {}, part_paths)
    if not messages and not referred:
        fields.refuse("input", "says nothing: it needs a message, a call or a result")
    names = FieldPaths()
    names.note("messages", "input")
    namespaces = Namespaces()
    tools = decode_functions(fields, HOSTED_KINDS, names, namespaces)
    hosted = decode_hosted_tools(fields, HOSTED_KINDS, names)
    limits = _limits(fields)
    request = GenerateRequest(
        model=fields.string("model") or None,
        adapter=decode_adapter(fields),
        cache_salt=decode_cache_salt(fields),
        messages=messages,
        part_paths=part_paths.of(messages),
        tools=tools,
        hosted=hosted,
        files=decode_requested_files(fields),
        tool_policy=_tool_policy(fields, tools, hosted),
        sampling=decode_sampling(fields),
        constraint=decode_text_constraint(fields, names, accepted),
        limits=limits,
        reasoning=_reasoning(fields),
        stop=decode_stop(fields),
        stop_token_ids=decode_stop_token_ids(fields),
        n=fields.integer("n", 1, MAX_N) or 1,
        top_logprobs=_top_logprobs(fields),
        ignore_eos=_flag(fields, "ignore_eos"),
    )
    return ResponsesRequest(
        request=request,
        fields=fields if referred else None,
        echoed=echoed(fields, limits, store, background),
        stream=_flag(fields, "stream"),
        background=background,
        store=store,
        instructions=fields.string("instructions") or None,
        previous_id=_previous_id(fields),
        references=referred,
        names=names,
        namespaces=namespaces,
    )


def resolve_item_references(asked: ResponsesRequest, known: Items) -> ResponsesRequest:
    """The request with the items that it refers to."""
    if asked.fields is None:
        return asked
    part_paths = PartPaths()
    messages = decode_input(asked.fields, known, part_paths)
    request = msgspec.structs.replace(
        asked.request, messages=messages, part_paths=part_paths.of(messages)
    )
    return msgspec.structs.replace(asked, request=request)


def _refuse_unsupported(fields: Fields, accepted: Accepted) -> None:
    for key, why in REFUSED.items():
        if fields.get(key) is not None:
            fields.refuse(key, why, code="unsupported_value")
    # Of no tools nothing runs in parallel: so a coding agent asks for a summary.
    one_call = fields.boolean("parallel_tool_calls") is False and fields.get("tools") != []
    if one_call and "parallel_tool_calls" not in accepted:
        fields.refuse(
            "parallel_tool_calls",
            "cannot be false; leave it out: a function that `tool_choice` names is called once; or"
            f" start the server with `{OPTION}`",
            code="unsupported_value",
        )
    options = fields.object("stream_options")
    if options is not None:
        options.boolean("include_usage")
    metadata = fields.object("metadata")
    if metadata is not None and len(metadata.values) > MAX_METADATA:
        fields.refuse("metadata", f"may hold at most {MAX_METADATA} pairs")


def _tool_policy(
    fields: Fields, tools: tuple[FunctionTool, ...], hosted: tuple[HostedTool, ...]
) -> ToolPolicy:
    policy = decode_tool_choice(fields, tools, hosted)
    if fields.boolean("parallel_tool_calls") is False:
        return msgspec.structs.replace(policy, parallel=False)
    return policy


def _flag(fields: Fields, key: str, *, default: bool = False) -> bool:
    value = fields.boolean(key)
    return default if value is None else value


def _limits(fields: Fields) -> Limits:
    """Three names for one limit; several may be sent if they agree."""
    given = {key: fields.integer(key, 1) for key in TOKEN_LIMITS}
    named = {key: value for key, value in given.items() if value is not None}
    first = next(iter(named), None)
    for key, value in named.items():
        if first is not None and value != named[first]:
            fields.refuse(key, f"differs from `{first}`; send only one of them")
    most = named[first] if first is not None else None
    return Limits(
        max_tokens=most,
        max_rounds=fields.integer("max_tool_rounds", 0),
        truncate=fields.choice("truncation", ("auto", "disabled")) == "auto",
        min_tokens=decode_min_tokens(fields, most),
    )


def _reasoning(fields: Fields) -> ReasoningPolicy:
    """`effort`; what is thought is shown whole, whatever `summary` says."""
    wanted = fields.object("reasoning")
    if wanted is None:
        return ReasoningPolicy()
    wanted.choice("summary", SUMMARIES)
    wanted.choice("generate_summary", SUMMARIES)
    effort = decode_effort(wanted, "effort")
    if effort is None:
        return ReasoningPolicy()
    if effort in OFF:
        return ReasoningPolicy(enabled=False)
    return ReasoningPolicy(enabled=True, effort=effort)


def _top_logprobs(fields: Fields) -> int | None:
    """None: no logprobs. Asked for by `logprobs`, as OpenAI does by `include`, or by how many
    alternatives there shall be."""
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    included = fields.array("include", "an array of strings") or ()
    check_include(included)
    if top and wanted is False:
        fields.refuse("top_logprobs", "needs `logprobs: true`")
    if wanted or top or LOGPROBS in included:
        return top or 0
    return None


def check_include(values: Sequence[Any]) -> None:
    """Raises InvalidRequest unless all of them may be included in an answer; they are there then
    anyway."""
    for index, value in enumerate(values):
        if type(value) is not str or value not in INCLUDE:
            what = shown(value) if type(value) is str else "this"
            field = f"include[{index}]"
            raise InvalidRequest(
                f"`{field}` must be one of {', '.join(INCLUDE)}, not {what}", field=field
            )


def _previous_id(fields: Fields) -> str | None:
    value = fields.string("previous_response_id")
    if value == "":
        fields.refuse("previous_response_id", "must not be empty")
    return value
