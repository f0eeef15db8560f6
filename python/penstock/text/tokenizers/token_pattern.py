"""Builds one regular expression for many tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

MAX_DEPTH: Final = 40
"""Maximum nesting of groups in a pattern, since the compiler of `re` is recursive."""


def pattern_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches the longest token at each position. Empty tokens are ignored.

    The pattern has the shape of a trie, so that its cost per position does not grow with the number
    of tokens: `re` would try the alternatives of a flat pattern one by one.
    """
    listed = sorted({token for token in tokens if token})
    return re.compile(_any_of(listed, MAX_DEPTH) if listed else r"(?!)")


def _any_of(tokens: list[str], depth: int) -> str:
    """Return a pattern that matches any of the tokens, which are sorted and may include ""."""
    both = zip(tokens[0], tokens[-1], strict=False)
    shared = "".join(letter for letter, _ in takewhile(lambda pair: pair[0] == pair[1], both))
    rest = [token[len(shared) :] for token in tokens]
    if len(rest) == 1:
        return re.escape(shared)
    if depth == 0:
        branches = [re.escape(text) for text in sorted(rest, key=len, reverse=True)]
    else:
        groups: dict[str, list[str]] = {}
        for text in rest:
            groups.setdefault(text[:1], []).append(text)
        optional = groups.pop("", None)
        branches = [_any_of(group, depth - 1) for group in groups.values()]
        if optional is not None:  # a token ends here: it matches if no longer token does
            branches.append("")
    return f"{re.escape(shared)}(?:{'|'.join(branches)})"
