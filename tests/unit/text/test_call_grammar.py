"""Grammars of text that may contain calls: free until a call starts, bound after that."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace
from test_answer_grammar import CALLS, FAMILIES, MASKERS, THINK, TOKENIZERS

from penstock.dialog import FunctionTool
from penstock.grammar.guides import LazyGrammarGuide
from penstock.grammar.trigger_matcher import TriggerMatcher
from penstock.grammar.vocabulary import compile_grammar
from penstock.text.grammar_vocabulary import reserved_tokens
from penstock.text.tool_parsers import TOOL_SYNTAXES, AnswerSyntax, Harmony
from penstock.text.tool_parsers.call_grammar import call_grammar
from tests.support.model_output_examples import TOOLS, WEATHER

WORDS = "Just words, 2 < 3, {braces}, [lists] and get_weather() to name it.\n"


class Followed:
    """An answer, followed token by token.

    `bound`: whether the grammar binds at its end. `broken`: the first token that the grammar did
    not allow, "" if none.
    """

    def __init__(
        self,
        kind: str,
        answer_syntax: AnswerSyntax,
        text: str,
        tools: tuple[FunctionTool, ...] = TOOLS,
        **triggers: Any,
    ) -> None:
        tokenizer, masker = TOKENIZERS[kind], MASKERS[kind]
        rules, marks = call_grammar(answer_syntax, reserved_tokens(tokenizer), tools)
        value = json.dumps({"grammars": [{"lark_grammar": rules}]})
        start = compile_grammar(masker, value)
        matcher = TriggerMatcher(replace(marks, **triggers), tokenizer.token_bytes)
        guide = LazyGrammarGuide(start, matcher)
        self.broken = ""
        for token in tokenizer.encode(text):
            was_bound = guide.bound is not None
            assert guide.accept(token)
            if was_bound and guide.bound is None and not self.broken:
                self.broken = tokenizer.token_bytes(token).decode()
        self.bound = guide.bound is not None


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", FAMILIES)
class TestEveryFamily:
    def test_call_is_bound_at_its_place_in_the_text(self, name: str, kind: str) -> None:
        syntax = TOOL_SYNTAXES[name]
        assert not isinstance(syntax, Harmony)
        before = "" if not syntax.section.open else WORDS
        text = before + syntax.write(CALLS)
        followed = Followed(kind, AnswerSyntax(syntax), text)
        assert followed.bound and not followed.broken
        wrong = Followed(kind, AnswerSyntax(syntax), text.replace("3", "x"))
        assert wrong.broken[:1] == "x" or "x" in wrong.broken

    def test_text_without_calls_is_not_bound(self, name: str, kind: str) -> None:
        syntax = TOOL_SYNTAXES[name]
        assert not isinstance(syntax, Harmony)
        assert not Followed(kind, AnswerSyntax(syntax), WORDS * 3).bound

    def test_calls_inside_reasoning_are_not_bound(self, name: str, kind: str) -> None:
        syntax = TOOL_SYNTAXES[name]
        assert not isinstance(syntax, Harmony)
        call = syntax.write(CALLS)
        tags = {"reasoning_open": THINK.open, "reasoning_close": THINK.close}
        for prefix, opened in ((f"\n{THINK.open}", False), ("", True)):
            thought = f"{prefix}Perhaps {call}"
            answer_syntax = AnswerSyntax(syntax, THINK)
            for text, bound in ((thought, False), (f"{thought}{THINK.close}\n{call}", True)):
                followed = Followed(kind, answer_syntax, text, reasoning_opened=opened, **tags)
                assert followed.bound == bound and not followed.broken


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", [
    '<tool_call>\n{"arguments": {"city": %s}, "name": "get_weather"}\n</tool_call>',
    '```json\n{\n  "name": "get_weather",\n  "arguments": {"city": %s}\n}\n```',
    '{"type": "function", "function": {"name": "get_weather", "parameters": {"city": %s}}}',
])  # fmt: skip
def test_json_calls_are_bound_in_any_order_and_wrapping(kind: str, text: str) -> None:
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["hermes"])
    followed = Followed(kind, answer_syntax, text % '"Oslo"')
    assert followed.bound and not followed.broken
    assert Followed(kind, answer_syntax, text % "7", (WEATHER,)).broken == "7"
    assert Followed(kind, answer_syntax, text % r'"a\q"').broken == "q"


def test_alternative_formats_of_a_family_are_bound() -> None:
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["llama3"])
    assert Followed("plain", answer_syntax, '<function=get_weather>{"city": 7}').broken == "7"
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["deepseek_v3"])
    call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    assert Followed("apart", answer_syntax, call + '{"city": 7').broken == "7"


@pytest.mark.parametrize("header", [
    "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>",
    " to=functions.%s<|channel|>commentary json<|message|>",
    "<|channel|>commentary to=%s<|message|>",
])  # fmt: skip
def test_harmony_binds_messages_to_known_functions(header: str) -> None:
    harmony = AnswerSyntax(TOOL_SYNTAXES["harmony"])
    analysis = "<|channel|>analysis<|message|>I write to=functions.ping.<|end|><|start|>assistant"
    for name, good, bad in (("get_weather", '{"city": "', "7"), ("ping", "{", "[")):
        start = analysis + header % name
        followed = Followed("apart", harmony, start + good)
        assert followed.bound and not followed.broken
        assert Followed("apart", harmony, start + bad).broken == bad
    assert not Followed("apart", harmony, analysis + "<|channel|>final<|message|>7").broken
    free = Followed("apart", harmony, analysis + header % "other" + "7")
    assert not free.broken


def test_function_name_that_is_a_prefix_of_another_is_distinguished() -> None:
    integer = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = (FunctionTool("get", None, {"type": "object"}), FunctionTool("get_one", None, integer))
    harmony = "<|channel|>commentary to=functions.get_one <|constrain|>json<|message|>"
    assert (
        Followed("apart", AnswerSyntax(TOOL_SYNTAXES["harmony"]), harmony + '{"b"', tools).broken
        == "b"
    )
    for name in ("hermes", "mistral", "pythonic"):
        syntax = TOOL_SYNTAXES[name]
        assert not isinstance(syntax, Harmony)
        call = syntax.write([("get_one", {"b": 1})])
        assert re.match("b", Followed("plain", AnswerSyntax(syntax), call, tools).broken)
