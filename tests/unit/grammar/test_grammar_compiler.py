"""The compiler turns constraints into grammars, names faults, and drops what a lenient schema may
lose."""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.base.errors import InvalidRequest
from penstock.dialog import Constraint
from penstock.grammar.compiler import MAX_GRAMMAR_CHARS, GrammarCompiler, serialize
from penstock.grammar.vocabulary import Vocabulary, compile_grammar
from penstock.text.grammar_vocabulary import vocabulary_of
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer

VOCABULARY = vocabulary_of(tiny_tokenizer())
SIZE = 264
TOKENS = VOCABULARY.grammar_tokenizer(SIZE)


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY, SIZE)
    yield made
    made.close()


def schema(value: Any, *, strict: bool = True) -> Constraint:
    return Constraint("json_schema", json.dumps(value), strict)


def matches(grammar: str, text: str) -> bool:
    matcher = compile_grammar(TOKENS, grammar)
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("constraint", "right", "wrong"),
    [
        (Constraint("regex", "[ab]+c?"), "abac", "ac1"),
        (Constraint("lark", 'start: "x" B\nB: /b*/'), "xbb", "bb"),
        (
            Constraint("llguidance", '{"grammars": [{"json_schema": {"const": 1}}]}'),
            "1",
            "2",
        ),
        (schema({"type": "array", "items": {"type": "integer"}}), "[1, 2]", "[1, x]"),
        (schema(True), '{"a": [null]}', "{a}"),
    ],
)
def test_every_kind_of_constraint_is_compiled(
    compiler: GrammarCompiler, constraint: Constraint, right: str, wrong: str
) -> None:
    grammar = compiler.compile(constraint)
    assert "grammars" in json.loads(grammar)
    assert matches(grammar, right)
    assert not matches(grammar, wrong)


def test_x_guidance_overrides_the_spacing_of_json(compiler: GrammarCompiler) -> None:
    pair = {"type": "array", "items": {"type": "integer"}}
    assert matches(compiler.compile(schema(pair)), "[1, 2]")
    narrow = {**pair, "x-guidance": {"item_separator": ",", "whitespace_flexible": False}}
    assert matches(compiler.compile(schema(narrow)), "[1,2]")


@pytest.mark.parametrize(
    ("value", "place", "reason"),
    [
        ({"properties": {"a": {"items": {"not": {}}}}}, "/properties/a/items", "not"),
        ({"properties": {"a/b": {"type": "strin"}}}, "/properties/a~1b", "strin"),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [{}, {"type": 5}]}}},
            "/$defs/x/anyOf/1",
            "type",
        ),
        ({"prefixItems": [{"type": "string", "pattern": "(?=a)"}]}, "/prefixItems/0", "look"),
        ({"type": "string", "minLength": "x"}, "", "minLength"),
        ({"enum": []}, "", "empty"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "", "minimum"),
        ({"$ref": "http://example.org/s.json"}, "", "Resource"),
        ([], "", "object"),
    ],
)
def test_schema_error_names_its_json_pointer(
    compiler: GrammarCompiler, value: Any, place: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(schema(value))
    assert caught.value.field == "response_format"
    head, _, tail = caught.value.message.partition(": ")
    assert head == "the JSON schema cannot be used" + (f" at {place}" if place else "")
    assert reason in tail


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("regex", "("),
        Constraint("lark", "start: NOTHING"),
        Constraint("lark", "start: <|no_such_token|>"),
        Constraint("llguidance", "{}"),
        Constraint("llguidance", "start: /a/"),
        Constraint("regex", "a" * (MAX_GRAMMAR_CHARS + 1)),
    ],
)
def test_invalid_grammar_is_refused(compiler: GrammarCompiler, constraint: Constraint) -> None:
    for _ in range(2):  # compiled, and remembered
        with pytest.raises(InvalidRequest) as caught:
            compiler.compile(constraint)
        assert caught.value.field == "grammar"
        assert len(caught.value.message) < 700


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (
            Constraint("regex", "(a"),
            "the regular expression cannot be used: unclosed group at character 1",
        ),
        (
            Constraint("regex", "x[z-a]"),
            "the regular expression cannot be used: invalid character class range, "
            "the start must be <= the end at character 3",
        ),
        (
            Constraint("lark", 'start: "a" x'),
            'the Lark grammar cannot be used: line 1, column 8: unknown name: "x"',
        ),
        (
            Constraint("lark", "start: /(a/"),
            "the Lark grammar cannot be used: line 1, column 8: unclosed group at character 1",
        ),
        (
            schema({"type": "string", "pattern": "a(?=b)"}),
            "the JSON schema cannot be used: look-around, including look-ahead and look-behind, "
            "is not supported at character 2",
        ),
        (
            schema({"$ref": "#"}),
            "the JSON schema cannot be used: no finite value matches it",
        ),
        (
            Constraint("regex", "a[b&&c]"),
            "the regular expression cannot be used: it allows no answer at all",
        ),
    ],
)
def test_error_refers_to_the_text_that_the_client_sent(
    compiler: GrammarCompiler, constraint: Constraint, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(constraint)
    assert caught.value.message == message


def test_lark_grammar_can_name_control_tokens(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(Constraint("lark", 'start: "a" <|im_start|> "b"'))
    matcher = compile_grammar(TOKENS, grammar)
    assert matcher.try_consume_tokens([97, 257, 98]) == 3


def test_lenient_schema_ignores_unenforceable_keywords(compiler: GrammarCompiler) -> None:
    lenient = schema({"type": "string", "not": {"const": "a"}}, strict=False)
    assert matches(compiler.compile(lenient), '"b"')


@pytest.mark.parametrize(
    ("inner", "right", "wrong"),
    [
        ({"type": "string", "pattern": "^(?!a)b$", "maxLength": 2}, '"ac"', '"abc"'),
        ({"type": "string", "pattern": r"\bfoo\b"}, '"b"', "5"),
        ({"type": "string", "pattern": r"^a\Z"}, '"b"', "5"),
        ({"type": "integer", "minimum": -(2**63)}, "-5", "5.5"),
    ],
)
def test_lenient_schema_loses_only_the_faulty_keyword(
    compiler: GrammarCompiler, inner: Any, right: str, wrong: str
) -> None:
    whole = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": inner}, "b": {"enum": [1]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    with pytest.raises(InvalidRequest):
        compiler.compile(schema(whole))
    grammar = compiler.compile(schema(whole, strict=False))
    assert matches(grammar, f'{{"a": [{right}], "b": 1}}')
    assert not matches(grammar, f'{{"a": [{wrong}], "b": 1}}')
    assert not matches(grammar, f'{{"a": [{right}], "b": 2}}')


def test_lenient_schema_drops_a_contradiction(compiler: GrammarCompiler) -> None:
    no_number = schema({"type": "integer", "minimum": 5, "maximum": 3}, strict=False)
    assert matches(compiler.compile(no_number), "3")
    closed = {"type": "object", "required": ["z"], "additionalProperties": False}
    grammar = compiler.compile(schema(closed, strict=False))
    assert matches(grammar, '{"z": 1}')
    assert not matches(grammar, "{}")


@pytest.mark.parametrize("harmless", [{"propertyNames": {"type": "string"}}, {"required": None}])
def test_keywords_without_effect_are_accepted(compiler: GrammarCompiler, harmless: Any) -> None:
    record = {"type": "object", "additionalProperties": {"type": "integer"}, **harmless}
    for value in (record, {"anyOf": [record]}, {"items": record}, {"$defs": {"a": record}}):
        assert compiler.compile(schema(value))
    with pytest.raises(InvalidRequest, match="propertyNames"):
        compiler.compile(schema({**record, "propertyNames": {"pattern": "a"}}))


def test_compiled_grammar_is_cached(compiler: GrammarCompiler) -> None:
    one = Constraint("regex", "known*")
    assert compiler.cached(one) is None
    assert compiler.compile(one) == compiler.cached(one)


def test_cached_refusal_keeps_no_stack_frames_alive(compiler: GrammarCompiler) -> None:
    class Held:
        pass

    def refused() -> weakref.ref[Held]:
        held = Held()  # in a frame of the error's traceback
        for _ in range(2):
            with contextlib.suppress(InvalidRequest):
                compiler.compile(Constraint("regex", "(held"))
        return weakref.ref(held)

    assert refused()() is None


def test_serialize_needs_no_trial_process() -> None:
    assert json.loads(serialize(Constraint("regex", "a")))["grammars"]


def test_sentencepiece_vocabulary_is_byte_exact() -> None:
    words = ["\u2581", "t", "h", "e", "th", "the", "\u2581the", "k", "i", "n", "g", "\u2581k"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [2, 3, 3] + [6] * 256 + [1] * len(words)
    tokenizer = tiny_tokenizer(
        model="llama",
        pre=None,
        tokens=tokens,
        token_types=types,
        scores=[0.0] * 259 + [-float(rank) for rank in range(len(words))],
        merges=[],
        bos_id=1,
        eos_id=2,
        unknown_id=0,
    )
    known = vocabulary_of(tokenizer).grammar_tokenizer(len(tokens))
    matcher = compile_grammar(known, serialize(Constraint("regex", "the king\u00fc")))
    forced = matcher.compute_ff_tokens()
    assert b"".join(tokenizer.token_bytes(token) for token in forced) == "the king\u00fc".encode()
    assert tokens.index("\u2581k") in forced


def test_unusable_tokenizer_is_reported() -> None:
    compiler = GrammarCompiler(Vocabulary("{}", ()), SIZE)
    with pytest.raises(InvalidRequest, match="tokenizer cannot be used"):
        compiler.compile(Constraint("regex", "a"))
    compiler.close()
