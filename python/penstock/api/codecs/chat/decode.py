"""The body of a chat completion request -> GenerateRequest."""

from __future__ import annotations

from typing import Final

from penstock.api.codecs.chat.encode import FUNCTION_CALLS
from penstock.api.codecs.chat.legacy_functions import (
    decode_function_choice,
    decode_legacy_functions,
)
from penstock.api.codecs.chat.messages import decode_messages
from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.request_fields.answer_prefix import split_answer_prefix, without_reasoning
from penstock.api.codecs.request_fields.constraint import decode_constraint
from penstock.api.codecs.request_fields.extensions import (
    decode_permissions,
    decode_requested_files,
    decode_run_limits,
    decode_session,
)
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.fields import Fields, decode_object
from penstock.api.codecs.request_fields.hosted_tools import (
    decode_hosted_tools,
    decode_search_options,
)
from penstock.api.codecs.request_fields.openai_compat import AS_SPECIFIED, Accepted
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.request_fields.reasoning import decode_reasoning
from penstock.api.codecs.request_fields.sampling import (
    MAX_N,
    MAX_TOP_LOGPROBS,
    decode_adapter,
    decode_cache_salt,
    decode_sampling,
    decode_stop,
    decode_stop_token_ids,
)
from penstock.api.codecs.request_fields.tools import decode_functions, decode_tool_choice
from penstock.dialog import GenerateRequest, HostedTool, Message, ShellTool

# Accepted with a value of any type, and without effect; so is every field named nowhere here.
# (`seed` is not in this list: an integer makes the draw reproducible, any other value is ignored.)
IGNORED: Final = (
    "user",
    "stream_options",
    "metadata",
    "service_tier",
    "parallel_tool_calls",
    "store",
)
# Tools of the server that stand in `tools`; search and shell have fields of their own here.
HOSTED: Final = ("code_interpreter",)


def decode(body: bytes, accepted: Accepted = AS_SPECIFIED) -> Decoded:
    """Raises InvalidRequest naming the field that is wrong."""
    fields = decode_object(body)
    stream = fields.boolean("stream") or False
    names = FieldPaths()
    legacy = decode_legacy_functions(fields, names)
    tools = legacy or decode_functions(fields, HOSTED, names)
    hosted = _hosted(fields, names)
    part_paths = PartPaths()
    messages, prompt = decode_messages(fields, part_paths)
    answer_prefix = ""
    if fields.boolean("continue_final_message"):
        messages, answer_prefix = _split_answer_prefix(fields, messages or ())
    names.note("prompt", "messages")  # which may be a text
    reasoning = decode_reasoning(fields)
    request = GenerateRequest(
        model=fields.string("model") or None,
        adapter=decode_adapter(fields),
        cache_salt=decode_cache_salt(fields),
        messages=messages,
        answer_prefix=answer_prefix,
        part_paths=part_paths.of(messages or ()),
        prompt=prompt,
        tools=tools,
        hosted=hosted,
        permissions=decode_permissions(fields, stream),
        files=decode_requested_files(fields),
        session=decode_session(fields),
        tool_policy=(
            decode_function_choice(fields, tools)
            if legacy
            else decode_tool_choice(fields, tools, hosted)
        ),
        sampling=decode_sampling(fields),
        constraint=decode_constraint(fields, names, accepted),
        limits=decode_run_limits(fields),
        reasoning=without_reasoning(fields, reasoning) if answer_prefix else reasoning,
        stop=decode_stop(fields),
        stop_token_ids=decode_stop_token_ids(fields),
        n=fields.integer("n", 1, MAX_N) or 1,
        top_logprobs=_top_logprobs(fields),
        ignore_eos=fields.boolean("ignore_eos") or False,
    )
    return Decoded(request, stream, FUNCTION_CALLS if legacy else None, names)


def _split_answer_prefix(
    fields: Fields, messages: tuple[Message, ...]
) -> tuple[tuple[Message, ...], str]:
    """The conversation, and the answer that goes on."""
    before, answer_prefix = split_answer_prefix(fields, messages)
    if not answer_prefix:
        why = "needs a conversation whose last message is text of the assistant"
        fields.refuse("continue_final_message", why)
    return before, answer_prefix


def _hosted(fields: Fields, names: FieldPaths) -> tuple[HostedTool, ...]:
    """What the server is to run, in whatever field it is asked for."""
    hosted = list(decode_hosted_tools(fields, HOSTED, names))
    search = decode_search_options(fields)
    if search is not None:
        names.note_hosted("web_search_options")
        hosted.append(search)
    if fields.boolean("enable_shell"):
        names.note_hosted("enable_shell")
        hosted.append(ShellTool())
    return tuple(hosted)


def _top_logprobs(fields: Fields) -> int | None:
    """None: no logprobs. 0: of the chosen token only."""
    wanted = fields.boolean("logprobs") or False
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not wanted:
        fields.refuse("top_logprobs", "needs `logprobs: true`")
    return (top or 0) if wanted else None
