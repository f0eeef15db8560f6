"""Converts llama.cpp's grammars (GBNF) to grammars for llguidance.

GBNF works on characters, while llguidance splits an answer into lexemes, each as long as possible:
a rule `[a-z]+ "abc"` could never end. If no rule contains itself, the grammar becomes one regular
expression, so that the whole answer is one lexeme. Otherwise each character is a lexeme. This is
also exact, but a mask then takes milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Final

from penstock.grammar.gbnf_parser import (
    Character,
    GbnfError,
    Piece,
    Reference,
    Rules,
    parse_gbnf,
    refuse,
)
from penstock.grammar.lark_termination import START, EndlessRule, without_endless_rules

ROOT: Final = "root"
MAX_REGEX_CHARS: Final = 32 * 1024
MAX_REGEX_DEPTH: Final = 100
"""Maximum nesting of groups in the regular expression. A deeper or larger grammar is written as
rules, since a regular expression repeats a rule at each reference to it."""


def gbnf_grammar(text: str) -> str:
    """Convert a GBNF grammar, which starts at the rule `root`, to llguidance's serialized format.

    Raises GbnfError.
    """
    rules = _used(parse_gbnf(text), text)
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


def _references(pieces: list[Piece]) -> Iterator[Reference]:
    return (piece for piece in pieces if isinstance(piece, Reference))


def _used(rules: Rules, text: str) -> Rules:
    """Return the rules that the rule `root` reaches. Raises GbnfError for an undefined rule."""
    if ROOT not in rules:
        raise GbnfError(f"there is no rule '{ROOT}'")
    used: Rules = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name in used:
            continue
        used[name] = rules[name]
        for reference in _references(rules[name]):
            if reference.name not in rules:
                refuse(text, reference.at, f"there is no rule '{reference.name}'")
            waiting.append(reference.name)
    return used


def _regex(rules: Rules) -> str | None:
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


def _depth(pieces: list[Piece], depths: dict[str, int]) -> int:
    """Return the nesting depth of groups in the regular expression of a rule. `depths`: the depths
    of the rules that it refers to."""
    depth = deepest = 0
    for piece in pieces:
        depth += (piece == "(") - (piece == ")")
        inner = depths[piece.name] + 1 if isinstance(piece, Reference) else 0
        deepest = max(deepest, depth + inner)
    return deepest


def _joined(pieces: list[Piece], written: dict[str, str]) -> str | None:
    """Return a rule as a regular expression, or None if it is too large. `written`: the regular
    expressions of the rules that it refers to."""
    parts: list[str] = []
    size = 0
    for piece in pieces:
        part = _in_regex(piece, written)
        size += len(part)
        if size > MAX_REGEX_CHARS:
            return None
        parts.append(part)
    return "".join(parts)


def _in_regex(piece: Piece, written: dict[str, str]) -> str:
    match piece:
        case Character(regex):
            return regex
        case Reference(name):
            return f"(?:{written[name]})"
        case "(":
            return "(?:"
        case _:
            return piece


def _lark_names(rules: Rules) -> dict[str, str]:
    return {name: f"r{index}" for index, name in enumerate(rules)} | {ROOT: START}


def _lark(rules: Rules, names: dict[str, str]) -> str:
    return "\n".join(
        f"{names[name]}: " + " ".join(_in_lark(piece, names) for piece in rule)
        for name, rule in rules.items()
    )


def _in_lark(piece: Piece, names: dict[str, str]) -> str:
    match piece:
        case Character(regex):
            return f"/{regex}/"
        case Reference(name):
            return names[name]
        case _:
            return piece or '""'
