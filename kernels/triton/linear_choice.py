"""Which kernel makes a product of dense weights: ours, which streams them, or the library's.

The choice depends on the shape of the weights and the number of rows, by a table that
`bench/device` measured on the GPU (`kernels/tuning/linear.json`: capability -> "NxK" -> pairs of
the most tokens and the kernel that serves up to there, ascending). A shape without an entry goes
by `_DEFAULT`: up to a tile's rows the weights are all that is read, and streaming them is a matter
of loads in flight; beyond, the library's tiles are hard to beat.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Literal, cast

Choice = Literal["stream", "library"]
Bounds = tuple[tuple[int, Choice], ...]

_TABLE = Path(__file__).parent.parent / "tuning" / "linear.json"
_DEFAULT: Bounds = ((16, "stream"),)


def choose(tokens: int, shape: tuple[int, int], capability: int) -> Choice:
    """The kernel for `tokens` rows and weights `shape` = (N, K) on a GPU of that capability."""
    rows, width = shape
    for most, choice in _measured(capability).get(f"{rows}x{width}", _DEFAULT):
        if tokens <= most:
            return choice
    return "library"


@cache
def _measured(capability: int) -> dict[str, Bounds]:
    table = json.loads(_TABLE.read_text())
    return cast("dict[str, Bounds]", table.get(str(capability), {}))
