"""Converts llama.cpp's grammars (GBNF) to grammars that llguidance takes.

GBNF works on characters, while llguidance splits an answer into lexemes, each as long as possible:
a rule `[a-z]+ "abc"` could never end. If no rule contains itself, the whole answer becomes one
lexeme: the grammar is one regular expression. Otherwise each character is a lexeme, which is exact,
but a mask then takes milliseconds.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple, NoReturn

from penstock.grammar.lark_termination import START, EndlessRule, without_endless_rules

ROOT: Final = "root"
MAX_DEPTH: Final = 64
"""Nesting of parentheses."""
MAX_SYMBOLS: Final = 64 * 1024
"""Characters of literals and ranges, plus all other items. This many take a fraction of a
second."""
MAX_REGEX_CHARS: Final = 32 * 1024
MAX_REGEX_DEPTH: Final = 100
"""A larger or deeper grammar is written as rules, since references multiply in a regular
expression."""

_TOKEN: Final = re.compile(
    r"""(?xs)
    (?P<blank> \s+ | \#[^\r\n]* )
    | (?P<name> [A-Za-z0-9_-]+ )
    | (?P<literal> "(?:[^"\\]|\\.)*" )
    | (?P<range> \[(?:[^\]\\]|\\.)*\] )
    | (?P<repeat> [*+?] | \{\s*\d{1,9}\s*(?:,\s*(?:\d{1,9}\s*)?)?\} )
    | (?P<any> \. )
    | (?P<sign> ::= | [()|] )
    """
)
_ESCAPE: Final = r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\."
_CHARACTER: Final = re.compile(
    r"(?s)\\x(?P<x>[0-9a-fA-F]{2})|\\u(?P<u>[0-9a-fA-F]{4})|\\U(?P<U>[0-9a-fA-F]{8})"
    r"|\\(?P<escaped>[^\w]|[nrt])|(?P<c>[^\\])"
)
_PART: Final = re.compile(rf"(?s)({_ESCAPE}|[^\\])(?:-({_ESCAPE}|[^\\]))?")
_CONTROL: Final = {"n": "\n", "r": "\r", "t": "\t"}
_SURROGATES: Final = range(0xD800, 0xE000)
_ANY: Final = r"[\x{0}-\x{10ffff}]"


class GbnfError(ValueError):
    """The text is not a GBNF grammar. The message says where."""


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Character(NamedTuple):
    regex: str


class _Reference(NamedTuple):
    name: str
    at: int


_Piece = str | _Character | _Reference
"""A string is one of `(`, `)`, `|` and repetitions, or empty for an empty match."""
_Rules = dict[str, list[_Piece]]


def gbnf_grammar(text: str) -> str:
    """Return llguidance's serialized form of a GBNF grammar, which starts at the rule `root`.

    Raises GbnfError.
    """
    rules = _used(_Parser(text).rules(), text)
    regex = _regex(rules)
    lark = f"start: /{regex}/"
    if regex is None:
        names = _lark_names(rules)
        lark = _lark(rules, names)
        try:
            lark = without_endless_rules(lark)
        except EndlessRule as error:
            name = next(name for name, written in names.items() if written == error.name)
            raise GbnfError(str(EndlessRule(name))) from error
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


class _Parser:
    """Parses the rules. A line may end between any two items: a rule continues until the next one
    begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_bounded(text), _Token("end", "", len(text))]
        self._next = 0

    def rules(self) -> _Rules:
        """Return every rule by its name."""
        rules: _Rules = {}
        while (name := self._tokens[self._next]).kind != "end":
            if not self._begins_rule():
                _refuse(self._text, name.at, "a rule must begin with its name and `::=`")
            if name.text in rules:
                _refuse(self._text, name.at, f"the rule '{name.text}' is defined twice")
            self._next += 2
            rules[name.text] = self._rule()
        return rules

    def _begins_rule(self) -> bool:
        token = self._tokens[self._next]
        return token.kind == "name" and self._tokens[self._next + 1].text == "::="

    def _rule(self) -> list[_Piece]:
        pieces: list[_Piece] = []
        opened: list[int] = []
        while self._tokens[self._next].kind != "end" and not self._begins_rule():
            token = self._tokens[self._next]
            self._next += 1
            match token.text:
                case "(":
                    opened.append(token.at)
                    if len(opened) > MAX_DEPTH:
                        _refuse(
                            self._text,
                            token.at,
                            f"parentheses are nested more than {MAX_DEPTH} deep",
                        )
                    pieces.append("(")
                case ")":
                    if not opened:
                        _refuse(self._text, token.at, "this parenthesis was not opened")
                    opened.pop()
                    _end_alternative(pieces)
                    pieces.append(")")
                case "|":
                    _end_alternative(pieces)
                    pieces.append("|")
                case _:
                    pieces += self._item(token, pieces)
        if opened:
            _refuse(self._text, opened[-1], "this parenthesis is not closed")
        _end_alternative(pieces)
        return pieces

    def _item(self, token: _Token, before: list[_Piece]) -> list[_Piece]:
        match token.kind:
            case "name":
                return [_Reference(token.text, token.at)]
            case "literal":
                characters = self._characters(token.text[1:-1], token.at)
                pieces: list[_Piece] = [_Character(_written(c)) for c in characters]
                if len(pieces) != 1 and self._tokens[self._next].kind == "repeat":
                    return ["(", *(pieces or [""]), ")"]
                return pieces or [""]
            case "range":
                return [_Character(self._range(token))]
            case "any":
                return [_Character(_ANY)]
            case "repeat":
                if not before or (isinstance(before[-1], str) and before[-1] != ")"):
                    _refuse(self._text, token.at, f"`{token.text}` has nothing to repeat")
                return [self._repetition(token)]
            case _:
                _refuse(self._text, token.at, f"`{token.text}` must follow the name of a rule")

    def _characters(self, written: str, at: int) -> list[str]:
        """Return the characters that the inside of a literal or range spells, escapes decoded."""
        characters = []
        place = 0
        while place < len(written):
            found = _CHARACTER.match(written, place)
            if found is None:
                _refuse(self._text, at, f"`{written[place : place + 2]}` is not a valid escape")
            characters.append(self._character(found, at))
            place = found.end()
        return characters

    def _character(self, found: re.Match[str], at: int) -> str:
        code, escaped, plain = found["x"] or found["u"] or found["U"], found["escaped"], found["c"]
        if code is None:
            return plain or _CONTROL.get(escaped, escaped)
        number = int(code, 16)
        if number > sys.maxunicode or number in _SURROGATES:
            _refuse(self._text, at, f"`{found[0]}` is not a character")
        return chr(number)

    def _range(self, token: _Token) -> str:
        """Return the regular expression of a range, e.g. `[a-z]`."""
        inside = token.text[1:-1]
        negated = inside.startswith("^")
        parts = []
        for part in _PART.finditer(inside, int(negated)):
            ends = [self._characters(end, token.at)[0] for end in part.groups() if end]
            if ends[0] > ends[-1]:
                _refuse(self._text, token.at, f"`{part[0]}` has its ends in reverse order")
            parts.append("-".join(map(_written, ends)))
        if not parts:
            _refuse(self._text, token.at, f"`{token.text}` contains no character")
        return f"[{'^' * negated}{''.join(parts)}]"

    def _repetition(self, token: _Token) -> str:
        written = "".join(token.text.split())
        bounds = [int(bound) for bound in written.strip("{}").split(",") if bound.isdigit()]
        if len(bounds) == 2 and bounds[0] > bounds[1]:
            _refuse(self._text, token.at, f"`{written}` has its bounds in reverse order")
        return written


def _bounded(text: str) -> Iterator[_Token]:
    symbols = 0
    for token in _tokens(text):
        symbols += len(token.text) if token.kind in ("literal", "range") else 1
        if symbols > MAX_SYMBOLS:
            _refuse(text, token.at, f"more than {MAX_SYMBOLS} symbols")
        yield token


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            _refuse(text, place, f"`{text[place]}` is unknown or unclosed")
        if found.lastgroup != "blank":
            assert found.lastgroup is not None
            yield _Token(found.lastgroup, found[0], place)
        place = found.end()


def _end_alternative(pieces: list[_Piece]) -> None:
    if not pieces or pieces[-1] in ("(", "|"):
        pieces.append("")


def _references(pieces: list[_Piece]) -> Iterator[_Reference]:
    return (piece for piece in pieces if isinstance(piece, _Reference))


def _used(rules: _Rules, text: str) -> _Rules:
    """Return the rules that are reachable from the start."""
    if ROOT not in rules:
        raise GbnfError(f"there is no rule '{ROOT}'")
    used: _Rules = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name in used:
            continue
        used[name] = rules[name]
        for reference in _references(rules[name]):
            if reference.name not in rules:
                _refuse(text, reference.at, f"there is no rule '{reference.name}'")
            waiting.append(reference.name)
    return used


def _regex(rules: _Rules) -> str | None:
    """Return all rules as one regular expression, or None if a rule contains itself or the result
    is too large."""
    needs = {name: {one.name for one in _references(rule)} for name, rule in rules.items()}
    written: dict[str, str] = {}
    depths: dict[str, int] = {}
    try:
        for name in TopologicalSorter(needs).static_order():
            depths[name] = _depth(rules[name], depths)
            regex = _joined(rules[name], written)
            if regex is None or depths[name] > MAX_REGEX_DEPTH:
                return None
            written[name] = regex
    except CycleError:
        return None
    return written[ROOT]


def _depth(pieces: list[_Piece], depths: dict[str, int]) -> int:
    """Return how deep groups nest in the regular expression of a rule, including those of the rules
    that it names."""
    depth = deepest = 0
    for piece in pieces:
        depth += (piece == "(") - (piece == ")")
        inner = depths[piece.name] + 1 if isinstance(piece, _Reference) else 0
        deepest = max(deepest, depth + inner)
    return deepest


def _joined(pieces: list[_Piece], written: dict[str, str]) -> str | None:
    """Return a rule as a regular expression, or None if it is too large."""
    parts: list[str] = []
    size = 0
    for piece in pieces:
        part = _in_regex(piece, written)
        size += len(part)
        if size > MAX_REGEX_CHARS:
            return None
        parts.append(part)
    return "".join(parts)


def _in_regex(piece: _Piece, written: dict[str, str]) -> str:
    match piece:
        case _Character(regex):
            return regex
        case _Reference(name):
            return f"(?:{written[name]})"
        case "(":
            return "(?:"
        case _:
            return piece


def _lark_names(rules: _Rules) -> dict[str, str]:
    return {name: f"r{index}" for index, name in enumerate(rules)} | {ROOT: START}


def _lark(rules: _Rules, names: dict[str, str]) -> str:
    return "\n".join(
        f"{names[name]}: " + " ".join(_in_lark(piece, names) for piece in rule)
        for name, rule in rules.items()
    )


def _in_lark(piece: _Piece, names: dict[str, str]) -> str:
    match piece:
        case _Character(regex):
            return f"/{regex}/"
        case _Reference(name):
            return names[name]
        case _:
            return piece or '""'


def _written(character: str) -> str:
    plain = character.isascii() and character.isalnum()
    return character if plain else f"\\x{{{ord(character):x}}}"


def _refuse(text: str, at: int, reason: str) -> NoReturn:
    before = text[:at]
    line, column = before.count("\n") + 1, at - before.rfind("\n")
    raise GbnfError(f"line {line}, column {column}: {reason}")
