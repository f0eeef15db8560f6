"""GBNF grammars match exactly the texts that they describe, and errors name their place."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from penstock.base.errors import InvalidRequest
from penstock.dialog import Constraint
from penstock.grammar.compiler import serialize
from penstock.grammar.gbnf import gbnf_grammar
from penstock.grammar.gbnf_parser import MAX_DEPTH, MAX_SYMBOLS, GbnfError
from penstock.grammar.vocabulary import GrammarError, compile_grammar
from penstock.text.grammar_vocabulary import vocabulary_of
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer

TOKENS = vocabulary_of(tiny_tokenizer()).grammar_tokenizer(264)
LONGEST = 4
WORDS = ["".join(word) for size in range(LONGEST + 1) for word in product("ab", repeat=size)]

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
QUERY = """
    root ::= select_statement

    select_statement ::= "SELECT " column " from " table " where " condition
    column ::= "col_1 " | "col_2 "
    table ::= "table_1 "
            | "table_2 "
    condition ::= column "= " number
    number ::= "1 " | "2 "
"""

# ("word", text), ("name", of a rule), ("sequence" or "choice", several), ("repeat", one, bounds).
Expression = tuple[Any, ...]


def matches(grammar: str, text: str) -> bool:
    matcher = compile_grammar(TOKENS, gbnf_grammar(grammar))
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('root ::= "a" | "b"', ["a", "b"], ["", "c", "ab"]),
        ('root ::= [a-z]+ "abc"', ["xabc", "abcabc"], ["abc", "x"]),
        ('root ::= [a-z]* "abc" root | "."', ["abc.", "xabcabc."], ["ab.", "abc"]),
        ("root ::= .", ["é", "\n", "€", "/"], ["", "ab"]),
        (r'root ::= "\x41\u00e9\U0001F600\n\"\\"', ['Aé😀\n"\\'], ["A"]),
        (r"root ::= [^\]\\/a-c-]", ["d", "[", "^"], ["]", "\\", "/", "b", "-"]),
        ("root ::= [+-]", ["+", "-"], [","]),
        ('root ::= "ab"{2}', ["abab"], ["abb", "ab"]),
        ('root ::= ("a" | ){ 1 , 2 }', ["", "a", "aa"], ["aaa"]),
        ('root ::= "a"{2,} # comment ::= "b"', ["aa", "aaaa"], ["a"]),
        ('root ::= ""', [""], ["a"]),
        ('root ::= (""){2} "a"', ["a"], [""]),
        ('root ::= x-1 x_2\nx-1 ::= "a"\nx_2 ::= "b"\r\n', ["ab"], ["a"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a", ""]),
        ('root ::= "a" root "b" |', ["", "ab", "aabb"], ["aab"]),
        ('root ::= "a"\nunused ::= unused "b"', ["a"], ["ab"]),
        (JSON, ['{"a": [1, -2.5, "x\\n\\u00e9", {}], "b": null}'], ['{"a" }', "[]", '{"a": 01}']),
        (QUERY, ["SELECT col_1  from table_2  where col_2 = 1 "], ["SELECT col_1 "]),
    ],
)
def test_gbnf_grammar_matches_the_expected_texts(
    grammar: str, right: Sequence[str], wrong: Sequence[str]
) -> None:
    assert [text for text in right if not matches(grammar, text)] == []
    assert [text for text in wrong if matches(grammar, text)] == []


@pytest.mark.parametrize("seed", range(60))
def test_random_grammar_matches_exactly_its_language(seed: int) -> None:
    rng = random.Random(seed)
    rules = {name: random_expression(rng, depth=3) for name in ("root", "x", "y")}
    grammar = "\n".join(f"{name} ::= {gbnf_text(rule)}" for name, rule in rules.items())
    expected = language(rules)
    try:
        compile_grammar(TOKENS, gbnf_grammar(grammar))
    except (GrammarError, GbnfError):
        assert expected == set(), grammar
        return
    assert {word for word in WORDS if matches(grammar, word)} == expected, grammar


def random_expression(rng: random.Random, depth: int) -> Expression:
    operations = ["sequence", "sequence", "choice", "repeat"] if depth else []
    match rng.choice(["word", "word", "name", *operations]):
        case "word":
            return ("word", rng.choice(["", "a", "b", "ab", "ba"]))
        case "name":
            return ("name", rng.choice(["root", "x", "y"]))
        case "repeat":
            bounds = rng.choice([(0, None), (1, None), (0, 1), (2, 2), (1, 2), (2, None)])
            return ("repeat", random_expression(rng, depth - 1), bounds)
        case operation:
            return (operation, [random_expression(rng, depth - 1) for _ in range(2)])


def gbnf_text(expression: Expression) -> str:
    match expression:
        case ("word", text):
            return f'"{text}"'
        case ("name", name):
            return name
        case ("repeat", inner, (least, most)):
            signs = {(0, None): "*", (1, None): "+", (0, 1): "?"}
            bounds = f"{{{least}}}" if least == most else f"{{{least},{most or ''}}}"
            return f"({gbnf_text(inner)}){signs.get((least, most), bounds)}"
        case (operation, inner):
            sign = " | " if operation == "choice" else " "
            return f"({sign.join(map(gbnf_text, inner))})"
    raise AssertionError(expression)


def language(rules: dict[str, Expression]) -> set[str]:
    """Return the words of `root` of up to `LONGEST` letters, as a fixpoint."""
    known: dict[str, set[str]] = {name: set() for name in rules}
    while True:
        grown = {name: words(rule, known) for name, rule in rules.items()}
        if grown == known:
            return known["root"]
        known = grown


def words(expression: Expression, known: dict[str, set[str]]) -> set[str]:
    match expression:
        case ("word", text):
            return {text}
        case ("name", name):
            return known[name]
        case ("choice", inner):
            return set().union(*(words(one, known) for one in inner))
        case ("sequence", inner):
            return joined(*(words(one, known) for one in inner))
        case ("repeat", inner, (least, most)):
            once = words(inner, known)
            times = range(least, (LONGEST + least if most is None else most) + 1)
            return set().union(*(joined(*[once] * count) for count in times))
    raise AssertionError(expression)


def joined(*parts: set[str]) -> set[str]:
    found = {""}
    for part in parts:
        found = {a + b for a in found for b in part if len(a + b) <= LONGEST}
    return found


def test_grammar_without_recursion_becomes_one_regular_expression() -> None:
    assert rule_count(QUERY) == 1
    assert rule_count(JSON) > 1


def test_grammar_too_large_for_a_regular_expression_keeps_its_rules() -> None:
    doubling = ['root ::= x0 "!"'] + [f"x{n} ::= x{n + 1} x{n + 1}" for n in range(30)]
    chained = ["root ::= x0"] + [f"x{n} ::= x{n + 1}" for n in range(5000)]
    assert rule_count("\n".join([*doubling, 'x30 ::= "a"'])) == 32
    assert rule_count("\n".join([*chained, 'x5000 ::= "a"'])) == 5002


def rule_count(grammar: str) -> int:
    (part,) = json.loads(gbnf_grammar(grammar))["grammars"]
    return len(part["lark_grammar"].splitlines())


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("", "there is no rule 'root'"),
        ('start ::= "a"', "there is no rule 'root'"),
        ("root ::= x", "line 1, column 10: there is no rule 'x'"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule 'root' is defined twice"),
        ('root: "a"', "line 1, column 5: `:` is unknown"),
        ('"a" ::= root', "line 1, column 1: a rule must begin with its name"),
        ('root ::= "a" ::= "b"', "line 1, column 14: `::=` must follow the name of a rule"),
        ('root ::= "a', 'line 1, column 10: `"` is unknown or unclosed'),
        ("root ::= [a", "line 1, column 10: `[` is unknown or unclosed"),
        ("root ::= []", "line 1, column 10: `[]` contains no character"),
        ("root ::= [b-a]", "line 1, column 10: `b-a` has its ends in reverse order"),
        ('root ::=\n  ("a"', "line 2, column 3: this parenthesis is not closed"),
        ('root ::= "a")', "line 1, column 13: this parenthesis was not opened"),
        ("root ::= *", "line 1, column 10: `*` has nothing to repeat"),
        ('root ::= "a"*?', "line 1, column 14: `?` has nothing to repeat"),
        ('root ::= "a"{3,2}', "line 1, column 13: `{3,2}` has its bounds in reverse order"),
        ('root ::= "a"{9999999999}', "line 1, column 13: `{` is unknown"),
        (r'root ::= "\q"', r"line 1, column 10: `\q` is not a valid escape"),
        (r'root ::= "\x4"', r"line 1, column 10: `\x` is not a valid escape"),
        (r'root ::= "\uD83D"', r"line 1, column 10: `\uD83D` is not a character"),
        (r'root ::= "\UFFFFFFFF"', r"line 1, column 10: `\UFFFFFFFF` is not a character"),
        (
            "root ::= " + "(" * 70,
            f"line 1, column {10 + MAX_DEPTH}: parentheses are nested more",
        ),
        ("root ::= " + "." * MAX_SYMBOLS, f"line 1, column {8 + MAX_SYMBOLS}: more than 65536 sy"),
        (f'root ::= "{"a" * MAX_SYMBOLS}"', "line 1, column 10: more than 65536 symbols"),
        (f"root ::= [{'a' * MAX_SYMBOLS}]", "line 1, column 10: more than 65536 symbols"),
        ("root ::= <think>", "line 1, column 10: `<` is unknown"),
    ],
)
def test_syntax_error_names_line_and_column(grammar: str, reason: str) -> None:
    with pytest.raises(GbnfError) as caught:
        gbnf_grammar(grammar)
    assert str(caught.value).startswith(reason)
    with pytest.raises(InvalidRequest, match="the GBNF grammar cannot be used: ") as refused:
        serialize(Constraint("gbnf", grammar))
    assert refused.value.field == "grammar"
