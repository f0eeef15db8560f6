"""Parses llama.cpp's grammars (GBNF) into rules of characters, references and operators."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

MAX_DEPTH: Final = 64
"""Maximum nesting of parentheses."""
MAX_SYMBOLS: Final = 64 * 1024
"""Maximum symbols of a grammar: characters in literals and ranges, plus one per other token.
Parsing this many takes a fraction of a second."""
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
    """The text is not a GBNF grammar. The message gives the position of the error."""


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class Character(NamedTuple):
    """A character or character class. `regex`: its regular expression."""

    regex: str


class Reference(NamedTuple):
    """A reference to a rule.

    - `name`: the rule's name.
    - `at`: the offset of the reference in the grammar's text.
    """

    name: str
    at: int


Piece = str | Character | Reference
"""A part of a rule. A string is `(`, `)`, `|`, a repetition such as `*`, or "" for an empty
match."""
Rules = dict[str, list[Piece]]
"""Name -> parts of the rule, in order."""


def parse_gbnf(text: str) -> Rules:
    """Return the rules of a grammar, by name. Raises GbnfError."""
    return _Parser(text).rules()


class _Parser:
    """Parses the rules of a grammar. Line breaks have no meaning: a rule continues until the next
    rule begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_bounded(text), _Token("end", "", len(text))]
        self._next = 0

    def rules(self) -> Rules:
        """Return all rules, by name. Raises GbnfError."""
        rules: Rules = {}
        while (name := self._tokens[self._next]).kind != "end":
            if not self._begins_rule():
                refuse(self._text, name.at, "a rule must begin with its name and `::=`")
            if name.text in rules:
                refuse(self._text, name.at, f"the rule '{name.text}' is defined twice")
            self._next += 2
            rules[name.text] = self._rule()
        return rules

    def _begins_rule(self) -> bool:
        token = self._tokens[self._next]
        return token.kind == "name" and self._tokens[self._next + 1].text == "::="

    def _rule(self) -> list[Piece]:
        pieces: list[Piece] = []
        opened: list[int] = []
        while self._tokens[self._next].kind != "end" and not self._begins_rule():
            token = self._tokens[self._next]
            self._next += 1
            match token.text:
                case "(":
                    opened.append(token.at)
                    if len(opened) > MAX_DEPTH:
                        refuse(
                            self._text,
                            token.at,
                            f"parentheses are nested more than {MAX_DEPTH} deep",
                        )
                    pieces.append("(")
                case ")":
                    if not opened:
                        refuse(self._text, token.at, "this parenthesis was not opened")
                    opened.pop()
                    _end_alternative(pieces)
                    pieces.append(")")
                case "|":
                    _end_alternative(pieces)
                    pieces.append("|")
                case _:
                    pieces += self._item(token, pieces)
        if opened:
            refuse(self._text, opened[-1], "this parenthesis is not closed")
        _end_alternative(pieces)
        return pieces

    def _item(self, token: _Token, before: list[Piece]) -> list[Piece]:
        match token.kind:
            case "name":
                return [Reference(token.text, token.at)]
            case "literal":
                characters = self._characters(token.text[1:-1], token.at)
                pieces: list[Piece] = [Character(_written(c)) for c in characters]
                if len(pieces) != 1 and self._tokens[self._next].kind == "repeat":
                    return ["(", *(pieces or [""]), ")"]
                return pieces or [""]
            case "range":
                return [Character(self._range(token))]
            case "any":
                return [Character(_ANY)]
            case "repeat":
                if not before or (isinstance(before[-1], str) and before[-1] != ")"):
                    refuse(self._text, token.at, f"`{token.text}` has nothing to repeat")
                return [self._repetition(token)]
            case _:
                refuse(self._text, token.at, f"`{token.text}` must follow the name of a rule")

    def _characters(self, written: str, at: int) -> list[str]:
        """Return the characters of the text inside a literal or range, with escapes decoded. `at`:
        offset for error messages."""
        characters = []
        place = 0
        while place < len(written):
            found = _CHARACTER.match(written, place)
            if found is None:
                refuse(self._text, at, f"`{written[place : place + 2]}` is not a valid escape")
            characters.append(self._character(found, at))
            place = found.end()
        return characters

    def _character(self, found: re.Match[str], at: int) -> str:
        code, escaped, plain = found["x"] or found["u"] or found["U"], found["escaped"], found["c"]
        if code is None:
            return plain or _CONTROL.get(escaped, escaped)
        number = int(code, 16)
        if number > sys.maxunicode or number in _SURROGATES:
            refuse(self._text, at, f"`{found[0]}` is not a character")
        return chr(number)

    def _range(self, token: _Token) -> str:
        """Return the regular expression of a character range, e.g. `[a-z]`."""
        inside = token.text[1:-1]
        negated = inside.startswith("^")
        parts = []
        for part in _PART.finditer(inside, int(negated)):
            ends = [self._characters(end, token.at)[0] for end in part.groups() if end]
            if ends[0] > ends[-1]:
                refuse(self._text, token.at, f"`{part[0]}` has its ends in reverse order")
            parts.append("-".join(map(_written, ends)))
        if not parts:
            refuse(self._text, token.at, f"`{token.text}` contains no character")
        return f"[{'^' * negated}{''.join(parts)}]"

    def _repetition(self, token: _Token) -> str:
        written = "".join(token.text.split())
        bounds = [int(bound) for bound in written.strip("{}").split(",") if bound.isdigit()]
        if len(bounds) == 2 and bounds[0] > bounds[1]:
            refuse(self._text, token.at, f"`{written}` has its bounds in reverse order")
        return written


def _bounded(text: str) -> Iterator[_Token]:
    symbols = 0
    for token in _tokens(text):
        symbols += len(token.text) if token.kind in ("literal", "range") else 1
        if symbols > MAX_SYMBOLS:
            refuse(text, token.at, f"more than {MAX_SYMBOLS} symbols")
        yield token


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            refuse(text, place, f"`{text[place]}` is unknown or unclosed")
        if found.lastgroup != "blank":
            assert found.lastgroup is not None
            yield _Token(found.lastgroup, found[0], place)
        place = found.end()


def _end_alternative(pieces: list[Piece]) -> None:
    if not pieces or pieces[-1] in ("(", "|"):
        pieces.append("")


def _written(character: str) -> str:
    plain = character.isascii() and character.isalnum()
    return character if plain else f"\\x{{{ord(character):x}}}"


def refuse(text: str, at: int, reason: str) -> NoReturn:
    before = text[:at]
    line, column = before.count("\n") + 1, at - before.rfind("\n")
    raise GbnfError(f"line {line}, column {column}: {reason}")
