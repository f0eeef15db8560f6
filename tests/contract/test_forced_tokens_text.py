"""Forced text is exact, even if the model's tokenizer would normalize it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from penstock.models.tokenizer.tokenizer_data import TokenType
from penstock.text.tokenizers.tokenizer import from_gguf
from tests.support.checkpoints.tiny_tokenizer import tiny_data
from tests.support.servers.guided_text_server import guided_text_server

ADDED = ["<tool_call>", "<b>", "<table>", "naïve"]
DATA = tiny_data()
TOKENIZER = from_gguf(
    tiny_data(  # parses added tokens in text, and normalizes text to NFC
        pre="qwen2",
        tokens=DATA.tokens + ADDED,
        token_types=DATA.token_types + [int(TokenType.USER_DEFINED)] * len(ADDED),
    )
)
TEXTS = ["<|im_end|>", "a<|im_start|>b", "<tool_call>", "<b>x</b>", "naïve", "\u212b", "e\u0301t"]
HI = [{"role": "user", "content": "hi"}]


def schema(value: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": value}}}


def of_one(name: str, value: dict[str, Any]) -> dict[str, Any]:
    return schema({
        "type": "object",
        "properties": {name: value},
        "required": [name],
        "additionalProperties": False,
    })  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "top_logprobs": 1}])
async def test_forced_literals_are_written_exactly(text: str, fields: dict[str, Any]) -> None:
    quoted = json.dumps(text, ensure_ascii=False)
    asked = [
        (of_one("tag", {"const": text}), {"tag": text}),
        (of_one("tag", {"enum": [text]}), {"tag": text}),
        (of_one(text, {"type": "null"}), {text: None}),
        ({"grammar": {"type": "regex", "value": re.escape(quoted)}}, text),
        ({"grammar": {"type": "lark", "value": f"start: {json.dumps(quoted)}"}}, text),
        ({"grammar": {"type": "gbnf", "value": f"root ::= {json.dumps(quoted)}"}}, text),
    ]
    if "logprobs" in fields:  # forces nothing
        asked = asked[:3]
    async with guided_text_server("", tokenizer=TOKENIZER) as server:
        for grammar, wanted in asked:
            body = {"messages": HI} | grammar | fields
            answer = (await server.http.post("/v1/chat/completions", json=body)).json()
            choice = answer["choices"][0]
            assert json.loads(choice["message"]["content"]) == wanted
            assert choice["finish_reason"] == "stop"


async def test_lark_grammar_names_a_control_token() -> None:
    grammar = {"type": "lark", "value": 'start: "a" <tool_call> "b"'}
    async with guided_text_server("", tokenizer=TOKENIZER) as server:
        body = {"messages": HI, "grammar": grammar}
        answer = (await server.http.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["message"]["content"] == "a<tool_call>b"
    assert answer["usage"]["completion_tokens"] == 3
