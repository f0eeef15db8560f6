"""One pattern for any of many tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

MAX_DEPTH: Final = 40
"""How many groups a pattern nests at the most. The compiler of patterns is recursive."""


def pattern_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds the longest of these tokens wherever one begins.

    It has the shape of a trie, so that its cost at a place does not grow with their number: `re`
    tries the alternatives of a flat pattern one by one. Empty tokens are left out.
    """
    listed = sorted({token for token in tokens if token})
    return re.compile(_any_of(listed, MAX_DEPTH) if listed else r"(?!)")


def _any_of(tokens: list[str], depth: int) -> str:
    """The source for tokens in sorted order; one of them may be empty."""
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
        if optional is not None:  # the token that ends here, where no longer one goes on
            branches.append("")
    return f"{re.escape(shared)}(?:{'|'.join(branches)})"
