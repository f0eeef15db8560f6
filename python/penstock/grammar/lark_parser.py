"""Parses Lark grammars in llguidance's dialect, as far as needed to tell which rules can end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.grammar.json_schema.termination import can_terminate

_MAX_DEPTH: Final = 100
_TOKEN: Final = re.compile(
    r"""(?xs)
    (?P<blank> \s+ | //[^\n]* | \#[^\n]* )
    | (?P<terminal> "(?:[^"\\\n]|\\.)*"i? | /(?!/)(?:[^/\\\n]|\\.)+/[a-z]* | <[^<>\s]*> )
    | (?P<inline> %(?:json|regex|llguidance)\s*(?=\{) )
    | (?P<statement> %[a-z]+[^\n]* )
    | (?P<alias> ->\s*[A-Za-z_][\w-]* )
    | (?P<name> [?!]?[A-Za-z_][\w-]* )
    | (?P<other> @[\w-]+ )
    | (?P<range> \.\. )
    | (?P<priority> \.-?\d+ )
    | (?P<repeat> [*+?] | \{\s*\d*\s*(?:,\s*\d*\s*)?\} | ~\s*\d+(?:\s*\.\.\s*\d+)? )
    | (?P<sign> [:|()\[\],=&~-] )
    """
)


class UnknownSyntax(Exception):
    """Raised for syntax that this parser does not know. The grammar is then not checked."""


class _Token(NamedTuple):
    """A token of a Lark grammar's text.

    - `kind`: the name of its group in `_TOKEN`, "schema" for an inline grammar, or "end".
    - `text`: the token's text. A "schema" token has "" if no finite value matches the JSON schema.
    - `start`, `end`: offsets in the grammar's text.
    """

    kind: str
    text: str
    start: int
    end: int


@dataclass(slots=True)
class Item:
    """A part of an expression: a reference to a rule, a group, or else a terminal.

    - `start`, `end`: offsets in the grammar's text.
    - `name`: the rule, "" for a group or terminal.
    - `group`: the alternatives of a group.
    - `optional`: the item may be left out.
    - `endless`: the item is a terminal that can never end.
    """

    start: int
    end: int
    name: str = ""
    group: Group | None = None
    optional: bool = False
    endless: bool = False


@dataclass(slots=True)
class Alternative:
    """One alternative of a group: a sequence of items, at offsets `start` to `end`."""

    start: int
    end: int
    items: list[Item]


Group = list[Alternative]


def parse_lark(lark: str) -> dict[str, Group]:
    """Return the rules of a grammar, by name. Raises UnknownSyntax."""
    return _Parser(lark).rules()


def inline_schemas(lark: str) -> list[Any]:
    """Return the JSON schemas in a grammar, [] if its syntax is not known."""
    try:
        tokens = [t for t in _tokens(lark) if t.kind == "schema"]
    except UnknownSyntax:
        return []
    found = (lark[token.start : token.end].partition("{") for token in tokens)
    return [json.loads(brace + rest) for name, brace, rest in found if name.startswith("%json")]


class _Parser:
    """Parses the rules of a Lark grammar, as far as needed to tell which rules can end."""

    def __init__(self, lark: str) -> None:
        self._tokens = list(_tokens(lark))
        self._at = 0

    def rules(self) -> dict[str, Group]:
        """Return all rules, by name. Raises UnknownSyntax."""
        rules: dict[str, Group] = {}
        while (token := self._token(self._at)).kind != "end":
            if token.kind == "statement":
                self._at += 1
                continue
            body = self._definition(self._at)
            name = token.text.lstrip("?!")
            if body is None or name in rules:
                raise UnknownSyntax
            self._at = body
            rules[name] = self._alternatives(0)
        return {name: rule for name, rule in rules.items() if _is_rule(name)}

    def _definition(self, at: int) -> int | None:
        """Return the index of the first token in the body of a definition, or None if no definition
        begins at token `at`."""
        if self._token(at).kind != "name":
            return None
        at += 1
        if self._token(at).text == "[":
            while self._token(at).text not in ("]", ""):
                at += 1
            at += 1
        if self._token(at).kind == "priority":
            at += 1
        return at + 1 if self._token(at).text == ":" else None

    def _alternatives(self, depth: int) -> Group:
        """Parse alternatives up to a closing bracket or the next definition."""
        if depth > _MAX_DEPTH:
            raise UnknownSyntax
        start = self._token(self._at - 1).end
        group = [Alternative(start, start, [])]
        while not self._is_over():
            token = self._token(self._at)
            self._at += 1
            if token.text == "|":
                group.append(Alternative(token.end, token.end, []))
                continue
            items = group[-1].items
            if token.kind == "repeat":
                _repeat(items, token)
            else:
                items.append(self._item(token, depth))
            group[-1].end = items[-1].end
        return group

    def _is_over(self) -> bool:
        token = self._token(self._at)
        ends = token.text in (")", "]") or token.kind in ("statement", "end")
        return ends or self._definition(self._at) is not None

    def _item(self, token: _Token, depth: int) -> Item:
        kind, text, start, end = token
        match kind, text:
            case _, "(" | "[":
                group = self._alternatives(depth + 1)
                closing = self._token(self._at)
                if closing.text != {"(": ")", "[": "]"}[text]:
                    raise UnknownSyntax
                self._at += 1
                return Item(start, closing.end, group=group, optional=text == "[")
            case "name", _ if _is_rule(text):
                return Item(start, end, name=text)
            case "schema", _:
                return Item(start, end, endless=not text)
            case "name" | "terminal" | "other" | "range" | "alias", _:
                return Item(start, end)
            case "sign", "&" | "~":
                return Item(start, end)
        raise UnknownSyntax

    def _token(self, at: int) -> _Token:
        return self._tokens[at] if at < len(self._tokens) else _Token("end", "", 0, 0)


def _repeat(items: list[Item], token: _Token) -> None:
    """Apply a repetition to the last item. The item becomes optional if it may occur zero times."""
    if not items:
        raise UnknownSyntax
    least = re.search(r"\d+", token.text.split(",")[0])
    optional = token.text in ("*", "?")
    if token.text[0] in "{~":
        optional = least is None or int(least[0]) == 0
    inner = items[-1]
    group = [Alternative(inner.start, inner.end, [inner])]
    items[-1] = Item(inner.start, token.end, group=group, optional=optional)


def _is_rule(name: str) -> bool:
    return name.lstrip("_")[:1].islower()


def _tokens(lark: str) -> Iterator[_Token]:
    place = 0
    while place < len(lark):
        start, found = place, _TOKEN.match(lark, place)
        if found is None or found.lastgroup is None:
            raise UnknownSyntax
        place = found.end()
        if found.lastgroup == "inline":
            try:
                value, place = json.JSONDecoder().raw_decode(lark, place)
            except (ValueError, RecursionError) as error:
                raise UnknownSyntax from error
            is_endless = found[0].startswith("%json") and not can_terminate(value)
            yield _Token("schema", "" if is_endless else "schema", start, place)
        elif found.lastgroup != "blank":
            yield _Token(found.lastgroup, found[0], start, place)
