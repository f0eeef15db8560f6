"""Decodes the body of a chat completion request into a `GenerateRequest`."""

from __future__ import annotations

import msgspec

from penstock.api.codecs.chat.encode import FUNCTION_CALLS
from penstock.api.codecs.chat.legacy_functions import (
    decode_function_choice,
    decode_legacy_functions,
)
from penstock.api.codecs.chat.messages import decode_messages
from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.request_fields.answer_prefix import split_answer_prefix, without_reasoning
from penstock.api.codecs.request_fields.constraint import decode_constraint
from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.codecs.request_fields.extensions import decode_conversation_fields
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.hosted_tools import (
    decode_hosted_tools,
    decode_search_options,
)
from penstock.api.codecs.request_fields.namespaces import Namespaces
from penstock.api.codecs.request_fields.openai_compat import NO_COMPAT, OpenAICompat
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.request_fields.reasoning import decode_reasoning
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.codecs.request_fields.sampling import decode_stop
from penstock.api.codecs.request_fields.tools import (
    decode_functions,
    decode_tool_choice,
    prepare_tools,
)
from penstock.api.schema.chat.request import ChatCompletionRequest
from penstock.dialog import HostedTool, Message, ShellTool


def decode(body: bytes, compat: OpenAICompat = NO_COMPAT) -> Decoded:
    """Decode a chat completion request. Raises InvalidRequest, which names the wrong field."""
    asked = decode_body(body, ChatCompletionRequest, prepare_tools)
    field_paths = FieldPaths()
    legacy = decode_legacy_functions(asked, field_paths)
    tools = legacy or decode_functions(asked.tools or (), field_paths, Namespaces())
    hosted = _hosted(asked, field_paths)
    part_paths = PartPaths()
    messages, prompt, answer_prefix = None, None, ""
    if isinstance(asked.messages, str):
        prompt = asked.messages
    else:
        messages = decode_messages(asked.messages, part_paths)
    if asked.continue_final_message:
        messages, answer_prefix = _split_answer_prefix(messages or ())
    field_paths.note("prompt", "messages")  # `messages` may be a string: the prompt
    reasoning = decode_reasoning(asked)
    constraint = decode_constraint(asked, field_paths, compat)
    request = msgspec.structs.replace(
        decode_conversation_fields(asked, constraint),
        messages=messages,
        answer_prefix=answer_prefix,
        part_paths=part_paths.of(messages or ()),
        prompt=prompt,
        tools=tools,
        hosted=hosted,
        tool_policy=(
            decode_function_choice(asked, tools)
            if legacy
            else decode_tool_choice(asked.tool_choice, tools, hosted)
        ),
        reasoning=without_reasoning(reasoning) if answer_prefix else reasoning,
        stop=decode_stop(asked.stop),
        n=asked.n or 1,
        top_logprobs=_top_logprobs(asked),
    )
    return Decoded(request, asked.stream or False, FUNCTION_CALLS if legacy else None, field_paths)


def _split_answer_prefix(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], str]:
    """Return the conversation without its answer prefix, and the prefix. Raises InvalidRequest if
    the last message is not text of the assistant."""
    before, answer_prefix = split_answer_prefix(messages)
    if not answer_prefix:
        why = "needs a conversation whose last message is text of the assistant"
        refuse("continue_final_message", why)
    return before, answer_prefix


def _hosted(asked: ChatCompletionRequest, field_paths: FieldPaths) -> tuple[HostedTool, ...]:
    """Return the server-side tools that `tools`, `web_search_options` and `enable_shell`
    request."""
    hosted = list(decode_hosted_tools(asked.tools or (), field_paths))
    search = decode_search_options(asked.web_search_options)
    if search is not None:
        field_paths.note_hosted("web_search_options")
        hosted.append(search)
    if asked.enable_shell:
        field_paths.note_hosted("enable_shell")
        hosted.append(ShellTool())
    return tuple(hosted)


def _top_logprobs(asked: ChatCompletionRequest) -> int | None:
    """Return the number of alternatives per token: 0 for the sampled token only, None for no
    logprobs."""
    if asked.top_logprobs and not asked.logprobs:
        refuse("top_logprobs", "needs `logprobs: true`")
    return (asked.top_logprobs or 0) if asked.logprobs else None
