"""The wire types and the code that reads and writes: each tells what the other one does."""

from __future__ import annotations

import inspect
import json
from typing import Any

import msgspec
import pytest
from described import validator_of_type
from http_serving import MODEL, frames_of, serving, spoken

from penstock.api.codecs import fields as fields_module
from penstock.api.codecs.chat import decode as chat
from penstock.api.codecs.completions import decode as completions
from penstock.api.wire.chat import ChatCompletionRequest
from penstock.api.wire.completions import CompletionRequest
from penstock.base.errors import InvalidRequest

HELLO = {"messages": [{"role": "user", "content": "hi"}]}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FULL_CHAT = {
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ],
    "tools": [FUNCTION, {"type": "function", "name": "g"}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION]},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
    "chat_template_kwargs": {"enable_thinking": True},
}
LLGUIDANCE = {"type": "llguidance", "value": {"grammars": [{"lark_grammar": "start: /a/"}]}}
CASES = [
    (chat, ChatCompletionRequest, [HELLO, FULL_CHAT, HELLO | {"grammar": LLGUIDANCE}]),
    (
        completions,
        CompletionRequest,
        [{"prompt": "x"}, {"prompt": [[1]], "grammar": LLGUIDANCE}],
    ),
]


# Read where `functions` are given in place of `tools`.
OLDER = {"function_call"}
# Named nowhere in the code, as it ignores whatever it does not read; described all the same.
NOT_READ = {CompletionRequest: {"max_tool_rounds"}}


@pytest.fixture
def asked(monkeypatch) -> set[str]:
    """Paths of the fields that a codec has looked for, as `messages[].content`."""
    names: set[str] = set()

    class Recorder(dict):
        path = ""

        def get(self, key, default=None):
            names.add(self._name(key))
            return super().get(key, default)

        def __getitem__(self, key):
            names.add(self._name(key))
            return super().__getitem__(key)

        def _name(self, key):
            return ".".join(part for part in (self.path, key) if part)

    begin = fields_module.Fields.__init__

    def recording(self, values: dict[str, Any], path: str = "") -> None:
        recorder = Recorder(values)
        recorder.path = "".join(c for c in path if not c.isdigit())
        begin(self, recorder, path)

    monkeypatch.setattr(fields_module.Fields, "__init__", recording)
    return names


@pytest.mark.parametrize(("codec", "kind", "bodies"), CASES)
def test_codec_reads_what_the_wire_type_names_and_names_what_it_reads(codec, kind, bodies, asked):
    module = inspect.getmodule(codec)
    for body in bodies:
        codec(json.dumps(body).encode())
    named = {field.encode_name for field in msgspec.structs.fields(kind)}
    top = {name for name in asked if "." not in name and "[" not in name}
    assert top <= named
    assert named - top - OLDER == set(module.IGNORED) | NOT_READ.get(kind, set())


@pytest.mark.parametrize(("codec", "kind", "bodies"), CASES)
def test_fields_inside_are_named_too(codec, kind, bodies, asked):
    for body in bodies:
        codec(json.dumps(body).encode())
    unnamed = [path for path in sorted(asked) if not names_path(kind, path)]
    assert unnamed == []


def names_path(kind: Any, path: str) -> bool:
    """Whether a wire type names a field inside; what it leaves open is named."""
    kinds = [msgspec.inspect.type_info(kind)]
    for step in path.replace("[]", ".[]").split("."):
        kinds = [inner for kind in kinds for inner in inside(kind, step)]
    return bool(kinds)


def inside(kind: msgspec.inspect.Type, step: str) -> list[msgspec.inspect.Type]:
    """The types that a value of `kind` has at a field, or in its array."""
    match kind:
        case msgspec.inspect.Metadata():
            return inside(kind.type, step)
        case msgspec.inspect.UnionType():
            return [inner for member in kind.types for inner in inside(member, step)]
        case msgspec.inspect.ListType() if step == "[]":
            return [kind.item_type]
        case msgspec.inspect.StructType() if step == kind.tag_field:
            return [msgspec.inspect.AnyType()]
        case msgspec.inspect.StructType():
            return [field.type for field in kind.fields if field.encode_name == step]
        case msgspec.inspect.AnyType() | msgspec.inspect.DictType():
            return [msgspec.inspect.AnyType()]
    return []


BEYOND = {"minimum": -1, "maximum": 1, "exclusiveMinimum": 0}


def described_bounds() -> list[tuple[str, float, float]]:
    """(field, a value at its bound, a value beyond it) of every number that is described."""
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
def test_described_ranges_are_those_of_the_codec(name, last, beyond):
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
async def test_chunks_are_as_described(path, body, kind):
    async with serving(spoken("a", "b")) as server:
        answer = await server.http.post(path, json=body | {"stream": True, "model": MODEL})
    *chunks, end = frames_of(answer.text)
    assert end == "[DONE]" and chunks
    for chunk in chunks:
        validator_of_type(kind).validate(json.loads(chunk))
