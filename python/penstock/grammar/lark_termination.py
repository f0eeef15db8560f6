"""Finds rules of a Lark grammar that can never end because they contain themselves.

A rule can end if one of its alternatives contains only rules that can end: a least fixpoint over
all rules. The grammar library does not check this; an answer in a rule that never ends would break
off or run to the token limit. So alternatives that cannot end are removed, and a grammar whose
start rule cannot end is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock.grammar.lark_parser import Alternative, Group, Item, UnknownSyntax, parse_lark

START: Final = "start"
_MAX_PASSES: Final = 50


class EndlessRule(Exception):
    """The start rule of a grammar can never end because the rule `name` can never end."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the rule `{name}` can never end")
        self.name = name


def without_endless_rules(lark: str) -> str:
    """Return a Lark grammar without alternatives that can never end. A grammar with syntax that the
    parser does not know is returned unchanged.

    Raises EndlessRule if no alternative of the start rule can end.
    """
    try:
        rules = parse_lark(lark)
    except UnknownSyntax:
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


def _ending(rules: Mapping[str, Group]) -> set[str] | None:
    """Return the rules that can end, or None if the search takes too long."""
    waiting, ending = list(rules), set[str]()
    for _ in range(_MAX_PASSES):
        left = []
        for name in reversed(waiting):  # each pass reverses the order: a chain needs few passes
            if _ends(rules[name], ending):
                ending.add(name)
            else:
                left.append(name)
        if len(left) == len(waiting):
            return ending
        waiting = left
    return None


def _ends(group: Group, ending: set[str]) -> bool:
    return any(_alternative_ends(alternative, ending) for alternative in group)


def _alternative_ends(alternative: Alternative, ending: set[str]) -> bool:
    return all(item.optional or _item_ends(item, ending) for item in alternative.items)


def _item_ends(item: Item, ending: set[str]) -> bool:
    if item.group is not None:
        return _ends(item.group, ending)
    return item.name in ending if item.name else not item.endless


def _endless_rule(rules: Mapping[str, Group], name: str, ending: set[str]) -> str:
    """Return the rule because of which the rule `name` cannot end: a rule that requires itself or a
    terminal that cannot end."""
    seen: set[str] = set()
    while name not in seen:
        seen.add(name)
        name = next((n for n in _needed(rules[name]) if n not in ending and n in rules), name)
    return name


def _names(rules: Mapping[str, Group]) -> set[str]:
    """Return the names of all rules that rules refer to."""
    names: set[str] = set()
    waiting = list(rules.values())
    while waiting:
        for item in (item for alternative in waiting.pop() for item in alternative.items):
            names |= {item.name} - {""}
            waiting += [item.group] if item.group is not None else []
    return names


def _needed(group: Group) -> Iterator[str]:
    for alternative in group:
        for item in alternative.items:
            if item.optional:
                continue
            if item.group is not None:
                yield from _needed(item.group)
            elif item.name:
                yield item.name


class _EndlessRemover:
    """Removes the alternatives and items that can never end from a grammar's text."""

    def __init__(self, text: str, ending: set[str]) -> None:
        self._text = text
        self._ending = ending
        self._changes: list[tuple[int, int, str]] = []

    def group(self, group: Group) -> None:
        """Remove the alternatives of a group that cannot end. At least one alternative must be able
        to end."""
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
            # Also remove the bar before this alternative, or the bar after it if no earlier
            # alternative is kept.
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
