"""Grammars as llama.cpp writes them (GBNF), in a form that llguidance takes.

GBNF knows characters only, while llguidance cuts an answer into lexemes, each as long as it can be:
a rule `[a-z]+ "abc"` would never come to its end. So a lexeme is one character here, which is exact
but makes masks that take milliseconds; or it is the whole answer, where no rule contains itself:
then the grammar is one regular expression.
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
"""Of parentheses."""
MAX_SYMBOLS: Final = 64 * 1024
"""Characters of literals and ranges, and whatever else: so many take a fraction of a second."""
MAX_REGEX_CHARS: Final = 32 * 1024
MAX_REGEX_DEPTH: Final = 100
"""Beyond these a grammar is written as rules: they multiply in a regular expression."""

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
    """What was written is no such grammar. The message says where."""


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
"""A string is one of `(`, `)`, `|` and repetitions; it is empty for what matches nothing."""
_Rules = dict[str, list[_Piece]]


def gbnf_grammar(text: str) -> str:
    """llguidance's serialized form of a grammar, which begins with the rule `root`. Raises
    GbnfError."""
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
    """A line may end between any two items: a rule goes on until the next one begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_bounded(text), _Token("end", "", len(text))]
        self._next = 0

    def rules(self) -> _Rules:
        """Every rule by its name."""
        rules: _Rules = {}
        while (name := self._tokens[self._next]).kind != "end":
            if not self._begins_rule():
                _refuse(self._text, name.at, "a rule begins with its name and `::=`")
            if name.text in rules:
                _refuse(self._text, name.at, f"there is a rule '{name.text}' already")
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
                        _refuse(self._text, token.at, f"more than {MAX_DEPTH} open parentheses")
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
                    _refuse(self._text, token.at, f"nothing stands before `{token.text}`")
                return [self._repetition(token)]
            case _:
                _refuse(self._text, token.at, f"`{token.text}` does not stand behind a name")

    def _characters(self, written: str, at: int) -> list[str]:
        """What the inside of a literal or of a range spells; an escaped one is not alone."""
        characters = []
        place = 0
        while place < len(written):
            found = _CHARACTER.match(written, place)
            if found is None:
                _refuse(self._text, at, f"`{written[place : place + 2]}` is no escape")
            characters.append(self._character(found, at))
            place = found.end()
        return characters

    def _character(self, found: re.Match[str], at: int) -> str:
        code, escaped, plain = found["x"] or found["u"] or found["U"], found["escaped"], found["c"]
        if code is None:
            return plain or _CONTROL.get(escaped, escaped)
        number = int(code, 16)
        if number > sys.maxunicode or number in _SURROGATES:
            _refuse(self._text, at, f"`{found[0]}` is no character")
        return chr(number)

    def _range(self, token: _Token) -> str:
        """The regular expression of `[a-z]`."""
        inside = token.text[1:-1]
        negated = inside.startswith("^")
        parts = []
        for part in _PART.finditer(inside, int(negated)):
            ends = [self._characters(end, token.at)[0] for end in part.groups() if end]
            if ends[0] > ends[-1]:
                _refuse(self._text, token.at, f"`{part[0]}` runs backwards")
            parts.append("-".join(map(_written, ends)))
        if not parts:
            _refuse(self._text, token.at, f"`{token.text}` holds no character")
        return f"[{'^' * negated}{''.join(parts)}]"

    def _repetition(self, token: _Token) -> str:
        written = "".join(token.text.split())
        bounds = [int(bound) for bound in written.strip("{}").split(",") if bound.isdigit()]
        if len(bounds) == 2 and bounds[0] > bounds[1]:
            _refuse(self._text, token.at, f"`{written}` has its bounds the wrong way round")
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
            _refuse(text, place, f"`{text[place]}` is not understood, or not closed")
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
    """The rules that the start needs."""
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
    """All of it as a regular expression; None where a rule contains itself, or it is too much."""
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
    """How deep the groups of a rule nest in a regular expression, with those of what it names."""
    depth = deepest = 0
    for piece in pieces:
        depth += (piece == "(") - (piece == ")")
        inner = depths[piece.name] + 1 if isinstance(piece, _Reference) else 0
        deepest = max(deepest, depth + inner)
    return deepest


def _joined(pieces: list[_Piece], written: dict[str, str]) -> str | None:
    """A rule as a regular expression; None once it is over its bound."""
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
