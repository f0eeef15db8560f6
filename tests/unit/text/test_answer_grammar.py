"""Grammars of whole answers, followed token by token as in the engine."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from penstock.dialog import Constraint, FunctionTool
from penstock.grammar.compiler import serialize
from penstock.grammar.json_schema.argument_schema import Unenforceable
from penstock.models.tokenizer.tokenizer_data import TokenType
from penstock.text import Tokenizer
from penstock.text.grammar_vocabulary import reserved_tokens, vocabulary_of
from penstock.text.tokenizers.tokenizer import from_gguf
from penstock.text.tool_parsers import TOOL_SYNTAXES, AnswerSyntax, Harmony, ReasoningSyntax
from penstock.text.tool_parsers.answer_grammar import AnswerRules, answer_grammar
from tests.support.checkpoints.tiny_tokenizer import tiny_data, tiny_tokenizer
from tests.support.model_output_examples import TOOLS, WEATHER

THINK = ReasoningSyntax("<think>", "</think>")
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", {"city": 'the "old" town', "days": 3, "metric": True}),
    ("ping", {}),
]
FAMILIES = sorted(set(TOOL_SYNTAXES) - {"harmony"})


def tokenizer_with_control_marks() -> Tokenizer:
    """The tiny vocabulary plus one control token per mark of every family."""
    found = {m for s in TOOL_SYNTAXES.values() for m in s.marks()} | {THINK.open, THINK.close}
    marks = sorted(m for m in found if re.fullmatch(r"<[^<>\s]+>|\[[A-Z_]+\]", m))
    data = tiny_data()
    types = data.token_types + [int(TokenType.CONTROL)] * len(marks)
    return from_gguf(tiny_data(tokens=data.tokens + marks, token_types=types))


TOKENIZERS = {"plain": tiny_tokenizer(), "apart": tokenizer_with_control_marks()}
MASKERS: dict[str, LLTokenizer] = {
    name: vocabulary_of(tokenizer).grammar_tokenizer(tokenizer.vocab_size)
    for name, tokenizer in TOKENIZERS.items()
}


def follows(kind: str, answer_syntax: AnswerSyntax, rules: AnswerRules, text: str) -> bool:
    """Whether the grammar accepts the whole text and may end there."""
    tokenizer = TOKENIZERS[kind]
    grammar = answer_grammar(answer_syntax, reserved_tokens(tokenizer), rules)
    matcher = LLMatcher(MASKERS[kind], grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(text)
    if matcher.try_consume_tokens(ids) < len(ids):
        return False
    return bool(matcher.is_accepting())


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", FAMILIES)
class TestEveryFamily:
    def test_required_calls_match_the_format_of_the_model(self, name: str, kind: str) -> None:
        syntax = TOOL_SYNTAXES[name]
        assert not isinstance(syntax, Harmony)
        rules = AnswerRules(TOOLS, "must")
        for calls in (CALLS, CALLS[:1], CALLS[1:]):
            assert follows(kind, AnswerSyntax(syntax), rules, syntax.write(calls))
        assert not follows(kind, AnswerSyntax(syntax), rules, "Sure.")
        assert not follows(kind, AnswerSyntax(syntax), rules, syntax.write(CALLS).replace("3", "x"))
        assert not follows(kind, AnswerSyntax(syntax), rules, syntax.write([("other", {})]))

    def test_one_allows_exactly_one_call(self, name: str, kind: str) -> None:
        syntax = TOOL_SYNTAXES[name]
        assert not isinstance(syntax, Harmony)
        rules = AnswerRules((WEATHER,), "one")
        assert follows(kind, AnswerSyntax(syntax), rules, syntax.write(CALLS[:1]))
        assert not follows(kind, AnswerSyntax(syntax), rules, syntax.write(CALLS[:1] * 2))

    def test_text_is_free_and_calls_in_it_are_bound(self, name: str, kind: str) -> None:
        syntax = TOOL_SYNTAXES[name]
        assert not isinstance(syntax, Harmony)
        rules = AnswerRules(TOOLS, "may")
        answer_syntax = AnswerSyntax(syntax)
        assert follows(kind, answer_syntax, rules, "Just words, 2 < 3 and {braces}.")
        assert follows(kind, answer_syntax, rules, syntax.write(CALLS))
        assert not follows(kind, answer_syntax, rules, syntax.write(CALLS).replace("3", "x"))

    def test_reasoning_before_calls_is_free(self, name: str, kind: str) -> None:
        syntax = TOOL_SYNTAXES[name]
        assert not isinstance(syntax, Harmony)
        answer_syntax = AnswerSyntax(syntax, THINK)
        calls = syntax.write(CALLS)
        possible = AnswerRules(TOOLS, "must", None, "possible")
        assert follows(kind, answer_syntax, possible, "<think>Hm, {</think>\n\n" + calls)
        assert follows(kind, answer_syntax, possible, calls)
        opened = AnswerRules(TOOLS, "must", None, "open")
        assert follows(kind, answer_syntax, opened, "Hm.</think>\n" + calls)
        assert not follows(kind, answer_syntax, opened, "Hm.</think>\nWell, " + calls)


@pytest.mark.parametrize("constraint", [
    Constraint("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),
    Constraint("regex", r'\{"a": [0-9]\}'),
    Constraint("lark", 'start: "{" inner "}"\ninner: "\\"a\\": " /[0-9]/'),
    Constraint("llguidance", json.dumps({"grammars": [
        {"lark_grammar": "start: @other"},
        {"name": "other", "lark_grammar": 'start: "{\\"a\\": 1}"'},
    ]})),
])  # fmt: skip
def test_constraint_binds_the_answer_but_not_the_reasoning(constraint: Constraint) -> None:
    answer = serialize(constraint)
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["hermes"], THINK)
    for thinking, before in (("open", "So.</think>\n\n"), ("possible", "<think>a</think>")):
        rules = AnswerRules(answer=answer, thinking=thinking)  # type: ignore[arg-type]
        assert follows("apart", answer_syntax, rules, before + '{"a": 1}')
        assert not follows("apart", answer_syntax, rules, before + "a")
    both = AnswerRules(TOOLS, "may", answer, "possible")
    call = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    assert follows("apart", answer_syntax, both, '<think>a</think>{"a": 1}')
    assert follows("apart", answer_syntax, both, call)
    assert not follows("apart", answer_syntax, both, "words")


def test_tag_before_the_answer_is_allowed() -> None:
    tags = ReasoningSyntax("<think>", "</think>", ("<answer>", "</answer>"))
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["hunyuan"], tags)
    constraint = Constraint("regex", r'\{"a": [0-9]\}')
    rules = AnswerRules(answer=serialize(constraint), thinking="open")
    for before in ("</think>\n<answer>\n", "</think>\n"):
        assert follows("plain", answer_syntax, rules, before + '{"a": 1}')
        assert not follows("plain", answer_syntax, rules, before + "a")


def test_call_is_bound_in_every_section() -> None:
    rules = AnswerRules(TOOLS, "may")
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["hermes"])
    for text in (
        '```json\n{\n  "name": "get_weather",\n  "arguments": %s\n}\n```',
        '{"name": "get_weather", "arguments": %s}',
        'Words.\n<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call> and words',
    ):
        assert follows("apart", answer_syntax, rules, text % '{"city": "Oslo"}')
        assert not follows("apart", answer_syntax, rules, text % '{"town": 1}')


def test_required_calls_may_use_any_section_that_may_be_forced() -> None:
    rules = AnswerRules(TOOLS, "must")
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["hermes"])
    fenced = '```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```'
    assert follows("apart", answer_syntax, rules, fenced)
    assert follows("apart", answer_syntax, rules, fenced + "\n" + fenced)
    assert not follows("apart", answer_syntax, rules, fenced.replace("city", "town"))
    assert not follows("apart", answer_syntax, rules, fenced + " and words")


def test_strict_schemas_are_fully_enforced() -> None:
    schema = {
        "type": "object",
        "properties": {
            "mode": {"enum": ["fast", "slow"]},
            "size": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        },
        "required": ["mode", "size"],
        "additionalProperties": False,
    }
    tool = FunctionTool("run", None, schema, strict=True)
    rules = AnswerRules((tool,), "one")
    for name in ("hermes", "mistral", "kimi", "qwen3_coder", "pythonic", "gemma4", "glm"):
        syntax = TOOL_SYNTAXES[name]
        assert not isinstance(syntax, Harmony)
        answer_syntax = AnswerSyntax(syntax)
        good = {"mode": "slow", "size": [1, 2]}
        assert follows("plain", answer_syntax, rules, syntax.write([("run", good)]))
        for bad in ({"mode": "late", "size": []}, {"size": [1]}, {"mode": "fast", "size": ["a"]}):
            assert not follows("plain", answer_syntax, rules, syntax.write([("run", bad)])), name


NOT_JSON = ("qwen3_coder", "glm", "deepseek_v32", "pythonic", "gemma4")
"""Families whose arguments are not JSON."""


def follows_call(name: str, parameters: dict[str, Any], given: Any, *, strict: bool = True) -> bool:
    syntax = TOOL_SYNTAXES[name]
    assert not isinstance(syntax, Harmony)
    rules = AnswerRules((FunctionTool("run", None, parameters, strict=strict),), "one")
    return follows("plain", AnswerSyntax(syntax), rules, syntax.write([("run", given)]))


def of_one(inner: Any, **others: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": inner}, "required": ["a"], **others}


@pytest.mark.parametrize("name", NOT_JSON)
class TestArgumentsThatAreNotJson:
    @pytest.mark.parametrize("strict", [False, True])
    def test_null_required_and_null_enum_values_are_accepted(self, name: str, strict: bool) -> None:
        null = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": None}
        assert follows_call(name, null, {}, strict=strict)
        enum = of_one({"type": "string", "enum": ["x", None]})
        assert follows_call(name, enum, {"a": "x"}, strict=strict)

    @pytest.mark.parametrize(
        "reference",
        ["#/properties/a", "#/properties/a/anyOf/0", "#/components/schemas/A", "#/$defs/A~1B"],
    )
    def test_references_to_any_place_are_followed(self, name: str, reference: str) -> None:
        number = {"type": "integer", "minimum": 1}
        schema = {
            "type": "object",
            "properties": {"a": {"anyOf": [number]}, "b": {"$ref": reference}},
            "components": {"schemas": {"A": number}},
            "$defs": {"A/B": number},
        }
        assert follows_call(name, schema, {"b": 5})
        assert not follows_call(name, schema, {"b": 0})

    @pytest.mark.parametrize("schema", [
        {"$ref": "#/$defs/A", "$defs": {"A": of_one({"type": "integer"})}},
        {"allOf": [of_one({"type": "integer"}), {"type": "object"}]},
        {"anyOf": [of_one({"type": "integer"}), of_one({"type": "boolean"})]},
        {"type": "object", "required": ["a"], "additionalProperties": {"type": "integer"}},
    ])  # fmt: skip
    def test_members_below_the_top_are_found(self, name: str, schema: dict[str, Any]) -> None:
        assert follows_call(name, schema, {"a": 5})
        assert not follows_call(name, schema, {})
        assert not follows_call(name, schema, {"a": []})

    def test_object_without_properties_may_have_any_members(self, name: str) -> None:
        given = {"a": 5, "b": True}
        assert follows_call(name, {"type": "object"}, given, strict=False)
        assert not follows_call(name, {"type": "object", "additionalProperties": False}, given)

    @pytest.mark.parametrize(("inner", "good", "bad"), [
        ({"const": "x y"}, "x y", "x"),
        ({"anyOf": [{"enum": ["x"]}, {"type": "null"}]}, None, "y"),
        ({"type": ["string", "null"], "enum": ["x", None]}, "x", "y"),
        ({"allOf": [{"$ref": "#/$defs/E"}]}, "e", "f"),
        ({"oneOf": [{"type": "integer"}, {"enum": ["z"]}]}, 7, "y"),
        ({"enum": ["x", 1, None]}, "x", "y"),
        ({"type": "integer", "minimum": 3, "maximum": 7}, 5, 8),
        ({"type": "string", "maxLength": 2}, "ab", "abc"),
        ({"type": "string", "minLength": 2}, "ab", "a"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
         [1, 2], [1]),
    ])  # fmt: skip
    def test_strict_values_are_enforced(self, name: str, inner: Any, good: Any, bad: Any) -> None:
        schema = of_one(inner, **{"$defs": {"E": {"enum": ["e", "e2"]}}})
        if name != "deepseek_v32" or not isinstance(good, str) or "maxLength" in inner:
            assert follows_call(name, schema, {"a": good})
        assert not follows_call(name, schema, {"a": bad})

    def test_unenforceable_keyword_of_a_strict_function_is_an_error(self, name: str) -> None:
        schema = of_one({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^a+$"}]})
        assert follows_call(name, schema, {"a": "b"}, strict=False) or name == "deepseek_v32"
        with pytest.raises(Unenforceable, match="pattern") as caught:
            follows_call(name, schema, {})
        assert caught.value.place == "/properties/a"

    @pytest.mark.parametrize("schema", [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}]},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        of_one({"$ref": "#/properties/a"}),
    ])  # fmt: skip
    def test_endless_references_terminate(self, name: str, schema: dict[str, Any]) -> None:
        follows_call(name, schema, {}, strict=False)


def test_string_that_looks_like_another_value_is_quoted() -> None:
    schema = of_one({"enum": ["1", 1]})
    rules = AnswerRules((FunctionTool("run", None, schema, strict=True),), "one")
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["qwen3_coder"])
    text = "<tool_call>\n<function=run>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>"
    assert follows("plain", answer_syntax, rules, text % '"1"')
    assert follows("plain", answer_syntax, rules, text % "1")


def test_python_calls_allow_only_what_the_parser_reads() -> None:
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["pythonic"])
    spaced = {"type": "object", "properties": {"user id": {}, "b": {"type": "number"}}}
    rules = AnswerRules((FunctionTool("run", None, spaced),), "one")
    assert not follows("plain", answer_syntax, rules, "[run(user id=1)]")
    assert follows("plain", answer_syntax, rules, "[run(b=-8.5E31)]")
    assert not follows("plain", answer_syntax, rules, "[run(b=-885E316346)]")
    with pytest.raises(Unenforceable, match="user id"):
        follows_call("pythonic", {**spaced, "required": ["user id"]}, {})


def test_json_calls_are_bound_with_any_keys_before_the_arguments() -> None:
    tool = FunctionTool("run", None, of_one({"enum": ["x"]}), strict=True)
    rules = AnswerRules((tool,), "may")
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["hermes"])
    for head in (
        '{"type": "function", "name": "run", "parameters": ',
        '{"name": "run", "id": "1", "arguments": ',
        '{"function": {"name": "run", "arguments": ',
        '{"function": "run", "arguments": ',
    ):
        assert follows("plain", answer_syntax, rules, head + '{"a": "x"}}')
        assert not follows("plain", answer_syntax, rules, head + '{"a": "y"}}')


def test_harmony_allows_analysis_before_calls() -> None:
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["harmony"])
    must = AnswerRules(TOOLS, "must", None, "possible")
    may = AnswerRules(TOOLS, "may", None, "possible")
    analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    call = (
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Oslo"}'
    )
    final = "<|channel|>final<|message|>Words."
    assert follows("apart", answer_syntax, must, analysis + call)
    assert not follows("apart", answer_syntax, must, analysis + final)
    for text in (analysis + call, analysis + final, final):
        assert follows("apart", answer_syntax, may, text)
    assert not follows("apart", answer_syntax, may, analysis + call.replace('"Oslo"', "3"))
    answer = serialize(Constraint("regex", "[0-9]+"))
    bound = AnswerRules(answer=answer, thinking="possible")
    assert follows("apart", answer_syntax, bound, analysis + "<|channel|>final<|message|>42")
    assert not follows("apart", answer_syntax, bound, analysis + final)
