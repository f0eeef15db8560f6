"""Finds rules of a Lark grammar that can never end because they contain themselves.

A rule can end if one of its alternatives contains only rules that can: the least fixpoint of that
over all rules. The grammar library does not check this; an answer in a rule that never ends would
break off or run to the token limit. So alternatives that cannot end are removed, and a grammar
whose start cannot end is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.grammar.json_schema.termination import can_terminate

START: Final = "start"
_MAX_DEPTH: Final = 100
_MAX_PASSES: Final = 50
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


class EndlessRule(Exception):
    """The start of a grammar can never end, because this rule cannot."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the rule `{name}` can never end")
        self.name = name


class _Unknown(Exception):
    """The text has syntax that this parser does not know, so the grammar is not checked."""


class _Token(NamedTuple):
    """A token of a Lark text. `kind` "schema" with empty `text`: no finite value matches the
    schema."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(slots=True)
class _Item:
    """A part of an expression: a reference to rule `name`, a `group`, or else a terminal.

    `endless`: a terminal that can never end. `optional`: the item may be left out.
    """

    start: int
    end: int
    name: str = ""
    group: _Group | None = None
    optional: bool = False
    endless: bool = False


@dataclass(slots=True)
class _Alternative:
    """A sequence of items."""

    start: int
    end: int
    items: list[_Item]


_Group = list[_Alternative]


def without_endless_rules(lark: str) -> str:
    """Return the grammar without the alternatives that can never end. Syntax that is not known is
    left as it is.

    Raises EndlessRule if no alternative of the start remains.
    """
    try:
        rules = _Parser(lark).rules()
    except _Unknown:
        return lark
    ending = _ending(rules)
    if ending is None or START not in rules or not _names(rules) <= rules.keys():
        return lark
    if START not in ending:
        raise EndlessRule(_endless_rule(rules, START, ending))
    remover = _EndlessRemover(lark, ending)
    for name, rule in rules.items():
        if name in ending:
            remover.group(rule)
    return remover.text()


def inline_schemas(lark: str) -> list[Any]:
    """Return the JSON schemas in a grammar; none if its syntax is not known."""
    try:
        tokens = [t for t in _tokens(lark) if t.kind == "schema"]
    except _Unknown:
        return []
    found = (lark[token.start : token.end].partition("{") for token in tokens)
    return [json.loads(brace + rest) for name, brace, rest in found if name.startswith("%json")]


def _ending(rules: Mapping[str, _Group]) -> set[str] | None:
    """Return the rules that can end, or None if the search takes too long."""
    waiting, ending = list(rules), set[str]()
    for _ in range(_MAX_PASSES):
        left = []
        for name in reversed(waiting):  # alternating directions: a chain needs few passes
            if _ends(rules[name], ending):
                ending.add(name)
            else:
                left.append(name)
        if len(left) == len(waiting):
            return ending
        waiting = left
    return None


def _ends(group: _Group, ending: set[str]) -> bool:
    return any(_alternative_ends(alternative, ending) for alternative in group)


def _alternative_ends(alternative: _Alternative, ending: set[str]) -> bool:
    return all(item.optional or _item_ends(item, ending) for item in alternative.items)


def _item_ends(item: _Item, ending: set[str]) -> bool:
    if item.group is not None:
        return _ends(item.group, ending)
    return item.name in ending if item.name else not item.endless


def _endless_rule(rules: Mapping[str, _Group], name: str, ending: set[str]) -> str:
    """Follow a rule that cannot end to a rule that contains itself or something that cannot end."""
    seen: set[str] = set()
    while name not in seen:
        seen.add(name)
        name = next((n for n in _needed(rules[name]) if n not in ending and n in rules), name)
    return name


def _names(rules: Mapping[str, _Group]) -> set[str]:
    """Return all rules that other rules refer to."""
    names: set[str] = set()
    waiting = list(rules.values())
    while waiting:
        for item in (item for alternative in waiting.pop() for item in alternative.items):
            names |= {item.name} - {""}
            waiting += [item.group] if item.group is not None else []
    return names


def _needed(group: _Group) -> Iterator[str]:
    for alternative in group:
        for item in alternative.items:
            if item.optional:
                continue
            if item.group is not None:
                yield from _needed(item.group)
            elif item.name:
                yield item.name


class _EndlessRemover:
    """Removes the parts of a text that can never end."""

    def __init__(self, text: str, ending: set[str]) -> None:
        self._text = text
        self._ending = ending
        self._changes: list[tuple[int, int, str]] = []

    def group(self, group: _Group) -> None:
        """Remove the alternatives that cannot end. At least one alternative of the group can."""
        kept = [one for one in group if _alternative_ends(one, self._ending)]
        for alternative in kept:
            for item in alternative.items:
                if not _item_ends(item, self._ending):
                    self._changes.append((item.start, item.end, '""'))
                elif item.group is not None:
                    self.group(item.group)
        for index, alternative in enumerate(group):
            if alternative in kept:
                continue
            # Remove the bar before it too, or the bar after it if no earlier alternative is kept.
            first = not any(one in kept for one in group[:index])
            start = alternative.start if first else group[index - 1].end
            end = group[index + 1].start if first else alternative.end
            self._changes.append((start, end, ""))

    def text(self) -> str:
        parts, at = [], 0
        for start, end, instead in sorted(self._changes):
            parts += [self._text[at:start], instead]
            at = end
        return "".join([*parts, self._text[at:]])


class _Parser:
    """Parses the rules of a Lark text, as far as needed to tell which ones can end."""

    def __init__(self, lark: str) -> None:
        self._tokens = list(_tokens(lark))
        self._at = 0

    def rules(self) -> dict[str, _Group]:
        """Return all rules by name. Raises _Unknown."""
        rules: dict[str, _Group] = {}
        while (token := self._token(self._at)).kind != "end":
            if token.kind == "statement":
                self._at += 1
                continue
            body = self._definition(self._at)
            name = token.text.lstrip("?!")
            if body is None or name in rules:
                raise _Unknown
            self._at = body
            rules[name] = self._alternatives(0)
        return {name: rule for name, rule in rules.items() if _is_rule(name)}

    def _definition(self, at: int) -> int | None:
        """Return the index where the body of a definition begins, or None if no definition begins
        at `at`."""
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

    def _alternatives(self, depth: int) -> _Group:
        """Parse up to a closing bracket or the next definition."""
        if depth > _MAX_DEPTH:
            raise _Unknown
        start = self._token(self._at - 1).end
        group = [_Alternative(start, start, [])]
        while not self._is_over():
            token = self._token(self._at)
            self._at += 1
            if token.text == "|":
                group.append(_Alternative(token.end, token.end, []))
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

    def _item(self, token: _Token, depth: int) -> _Item:
        kind, text, start, end = token
        match kind, text:
            case _, "(" | "[":
                group = self._alternatives(depth + 1)
                closing = self._token(self._at)
                if closing.text != {"(": ")", "[": "]"}[text]:
                    raise _Unknown
                self._at += 1
                return _Item(start, closing.end, group=group, optional=text == "[")
            case "name", _ if _is_rule(text):
                return _Item(start, end, name=text)
            case "schema", _:
                return _Item(start, end, endless=not text)
            case "name" | "terminal" | "other" | "range" | "alias", _:
                return _Item(start, end)
            case "sign", "&" | "~":
                return _Item(start, end)
        raise _Unknown

    def _token(self, at: int) -> _Token:
        return self._tokens[at] if at < len(self._tokens) else _Token("end", "", 0, 0)


def _repeat(items: list[_Item], token: _Token) -> None:
    """Apply a repetition to the last item, which becomes optional if it may occur zero times."""
    if not items:
        raise _Unknown
    least = re.search(r"\d+", token.text.split(",")[0])
    optional = token.text in ("*", "?")
    if token.text[0] in "{~":
        optional = least is None or int(least[0]) == 0
    inner = items[-1]
    group = [_Alternative(inner.start, inner.end, [inner])]
    items[-1] = _Item(inner.start, token.end, group=group, optional=optional)


def _is_rule(name: str) -> bool:
    return name.lstrip("_")[:1].islower()


def _tokens(lark: str) -> Iterator[_Token]:
    place = 0
    while place < len(lark):
        start, found = place, _TOKEN.match(lark, place)
        if found is None or found.lastgroup is None:
            raise _Unknown
        place = found.end()
        if found.lastgroup == "inline":
            try:
                value, place = json.JSONDecoder().raw_decode(lark, place)
            except (ValueError, RecursionError) as error:
                raise _Unknown from error
            is_endless = found[0].startswith("%json") and not can_terminate(value)
            yield _Token("schema", "" if is_endless else "schema", start, place)
        elif found.lastgroup != "blank":
            yield _Token(found.lastgroup, found[0], start, place)
