"""The schema types and the codecs agree: each field of one is known to the other."""

from __future__ import annotations

import json

import msgspec
import pytest
from scripted_answers import HELLO

from penstock.api.codecs.chat import decode as chat
from penstock.api.codecs.completions import decode as completions
from penstock.api.codecs.messages import decode as messages
from penstock.api.codecs.responses import decode as responses
from penstock.api.codecs.sessions import decode_session as sessions
from penstock.api.schema import fields as f
from penstock.api.schema.chat.request import ChatCompletionRequest
from penstock.api.schema.completions import CompletionRequest
from penstock.api.schema.messages.request import MessagesRequest
from penstock.api.schema.responses.request_and_resource import OpenResponsesCreateRequest
from penstock.api.schema.sessions import ImportedSession
from penstock.base.errors import InvalidRequest
from tests.support.openapi_checks import validator_of_type
from tests.support.servers.http_server import MODEL, frames_of, serving, spoken

FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NESTED_CHOICE = {"type": "function", "function": {"name": "f"}}
FLAT_CHOICE = {"type": "function", "name": "g"}
FULL_CHAT = {
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ],
    "tools": [FUNCTION, {"type": "function", "name": "g"}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [NESTED_CHOICE]},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
    "chat_template_kwargs": {"enable_thinking": True},
}
PARTS = [
    {"type": "text", "text": "t"},
    {"type": "image_url", "image_url": {"url": "http://a/b.png", "detail": "low"}},
    {"type": "audio_url", "audio_url": {"url": "http://a/b.wav"}},
    {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "wav"}},
    {"type": "video_url", "video_url": {"url": "http://a/b.mp4"}},
    {"type": "file", "file": {"filename": "a", "file_data": "YQ=="}},
]
SEARCH = {
    "user_location": {"type": "approximate", "approximate": {"city": "Graz"}},
    "filters": {"allowed_domains": ["a.at"]},
    "search_content_types": ["text"],
}
RICH_CHAT = {
    "messages": [{"role": "user", "content": PARTS}],
    "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
    "web_search_options": SEARCH,
    "files": [{"name": "a.csv"}],
}
STRUCTURED = {
    "structured_outputs": {"json": "{}"},
    "stop_token_ids": [1],
    "min_tokens": 0,
    "cache_salt": "s",
}
LLGUIDANCE = {"type": "llguidance", "value": {"grammars": [{"lark_grammar": "start: /a/"}]}}
FLAT = {"type": "function", "name": "g", "parameters": {"type": "object"}}
ANNOTATION = {
    "type": "file_citation",
    "file_citation": {"file_id": "file-1"},
    "url_citation": {"url": "u"},
}
INPUT_PARTS = [
    {"type": "input_text", "text": "t", "annotations": [ANNOTATION]},
    {"type": "output_text", "text": "t"},
    {"type": "text", "text": "t"},
    {"type": "refusal", "refusal": "no"},
    {"type": "input_image", "image_url": "http://a/b.png"},
    {"type": "image_url", "image_url": {"url": "http://a/b.png"}},
    {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "wav"}},
    {"type": "input_audio", "data": "YQ==", "format": "wav"},
    {"type": "input_file", "file_id": "file-1"},
    {"type": "input_file", "file_url": "http://a/b"},
    {"type": "input_file", "filename": "a", "file_data": "YQ=="},
]
ITEMS = [
    {"role": "user", "content": INPUT_PARTS},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "s"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {"id": "msg_1"},
]
SHELL = {
    "type": "container_auto",
    "skills": [{"type": "skill_reference", "skill_id": "s", "version": "latest"}],
}
FLAT_SEARCH = SEARCH | {"user_location": {"type": "approximate", "city": "Graz"}}
FULL_RESPONSE = {
    "input": ITEMS,
    "tools": [
        FUNCTION,
        FLAT,
        {"type": "web_search"} | FLAT_SEARCH,
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "shell", "environment": SHELL},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [FLAT_CHOICE]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "stream_options": {"include_usage": True},
    "files": [{"name": "a.csv"}],
}
PREVIEW = {"type": "web_search_preview", "user_location": {"city": "Graz"}}
FORMATTED = {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}
IMAGE = {"type": "base64", "media_type": "image/png", "data": "YQ=="}
BLOCK = {"type": "text", "text": "t"}
BLOCKS = [
    BLOCK,
    {"type": "image", "source": IMAGE},
    {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}},
    {"type": "image", "source": {"type": "file", "file_id": "file-1"}},
    {"type": "document", "source": {"type": "text", "data": "t"}},
    {"type": "document", "source": {"type": "content", "content": [BLOCK]}},
    {"type": "document", "source": {"type": "base64", "data": "YQ=="}},
    {"type": "document", "source": {"type": "url", "url": "http://a/b.pdf"}},
    {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
    {"type": "search_result", "source": "s", "title": "t", "content": [BLOCK]},
    {"type": "container_upload", "file_id": "file-1"},
    {"type": "tool_result", "tool_use_id": "c", "content": [BLOCK], "is_error": True},
    {"type": "web_search_tool_result"},
]
SAID = [
    BLOCK,
    {"type": "thinking", "thinking": "hm"},
    {"type": "redacted_thinking"},
    {"type": "tool_use", "id": "c", "name": "f", "input": {}},
]
FULL_MESSAGES = {
    "messages": [{"role": "assistant", "content": SAID}, {"role": "user", "content": BLOCKS}],
    "system": [BLOCK],
    "tools": [
        {"name": "f", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "user_location": {"type": "approximate"}},
    ],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "container": {"skills": [{"type": "custom", "skill_id": "s"}]},
    "chat_template_kwargs": {"enable_thinking": True},
    "files": [{"name": "a.csv"}],
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SESSION_PARTS = [
    {"type": "text", "text": "t"},
    {"type": "image_url", "image_url": {"url": "http://a/b.png"}},
    {"type": "audio_url", "audio_url": {"url": "http://a/b.wav"}},
    {"type": "video_url", "video_url": {"url": "http://a/b.mp4"}},
    {"type": "file", "file": {"filename": "a", "file_data": "YQ=="}},
]
SESSION = {
    "messages": [
        {"role": "user", "content": SESSION_PARTS},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ],
    "files": [{"id": "file-1", "name": "a", "text": "t", "source": {"tool": "shell"}}],
}
CASES = [
    (
        chat,
        ChatCompletionRequest,
        [HELLO, FULL_CHAT, RICH_CHAT, HELLO | {"grammar": LLGUIDANCE}, HELLO | STRUCTURED],
    ),
    (
        responses,
        OpenResponsesCreateRequest,
        [
            {"input": "x", "tools": [PREVIEW]} | FORMATTED,
            FULL_RESPONSE,
            {"input": "x", "grammar": LLGUIDANCE},
        ],
    ),
    (
        messages,
        MessagesRequest,
        [
            HELLO,
            FULL_MESSAGES,
            HELLO | {"grammar": LLGUIDANCE, "web_search_options": SEARCH},
            HELLO | FORMATTED,
        ],
    ),
    (sessions, ImportedSession, [SESSION]),
    (
        completions,
        CompletionRequest,
        [{"prompt": "x"}, {"prompt": [[1]], "grammar": LLGUIDANCE}],
    ),
]


# Read only if the older `functions` are sent in place of `tools`.
OLDER = {"function_call"}
# Without effect, but checked.
CHECKED_ONLY = {
    MessagesRequest: {"logprobs", "top_logprobs"},
    OpenResponsesCreateRequest: {
        "max_tool_calls",
        "conversation",
        "prompt",
        "stream_options",
    },
    ImportedSession: {"images", "videos"},
}


@pytest.mark.parametrize(("codec", "kind", "bodies"), CASES)
def test_codec_reads_every_field_that_its_type_does_not_call_ignored(
    codec, kind, bodies, monkeypatch
):
    read: set[str] = set()

    def recording(self, name):
        read.add(name)
        return object.__getattribute__(self, name)

    monkeypatch.setattr(kind, "__getattribute__", recording, raising=False)
    for body in bodies:
        codec(json.dumps(body).encode())
    fields = msgspec.inspect.type_info(kind).fields
    effective = {field.name for field in fields if not is_ignored(field.type)}
    assert effective - read - OLDER == CHECKED_ONLY.get(kind, set())
    assert not read & {field.name for field in fields} - effective


def is_ignored(kind: msgspec.inspect.Type) -> bool:
    return kind == msgspec.inspect.type_info(f.Ignored)


@pytest.mark.parametrize(("kind", "bodies"), [case[1:] for case in CASES])
def test_schema_types_and_codec_accept_the_same_requests(kind, bodies):
    for body in bodies:
        validator_of_type(kind.__name__).validate(body)


BEYOND = {"minimum": -1, "maximum": 1, "exclusiveMinimum": 0}


def described_bounds() -> list[tuple[str, float, float]]:
    """Return (field, its largest or smallest value, a value beyond it) for every documented
    number."""
    schema = msgspec.json.schema(ChatCompletionRequest)["$defs"]["ChatCompletionRequest"]
    return [
        (name, kind[bound] if beyond else kind[bound] + 1, kind[bound] + beyond)
        for name, field in schema["properties"].items()
        for kind in field.get("anyOf", [field])
        for bound, beyond in BEYOND.items()
        if bound in kind
    ]


def with_field(name: str, value: float) -> bytes:
    return json.dumps(HELLO | {"logprobs": True, name: value}).encode()


@pytest.mark.parametrize(("name", "last", "beyond"), described_bounds())
def test_documented_ranges_equal_those_of_the_codec(name, last, beyond):
    chat(with_field(name, last))
    with pytest.raises(InvalidRequest) as refused:
        chat(with_field(name, beyond))
    assert refused.value.field == name


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", HELLO, "ChatCompletionChunkResponse"),
        (
            "/v1/chat/completions",
            HELLO | {"logprobs": True, "top_logprobs": 2, "n": 2},
            "ChatCompletionChunkResponse",
        ),
        ("/v1/completions", {"prompt": "x", "logprobs": 2}, "CompletionChunkResponse"),
    ],
)
async def test_chunks_match_their_schema(path, body, kind):
    async with serving(spoken("a", "b")) as server:
        answer = await server.http.post(path, json=body | {"stream": True, "model": MODEL})
    *chunks, end = frames_of(answer.text)
    assert end == "[DONE]" and chunks
    for chunk in chunks:
        validator_of_type(kind).validate(json.loads(chunk))
