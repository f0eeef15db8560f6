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

import torch

Choice = Literal["stream", "library"]
Bounds = tuple[tuple[int, Choice], ...]

_TABLE = Path(__file__).parent.parent / "tuning" / "linear.json"
_DEFAULT: Bounds = ((16, "stream"),)


def choose(tokens: int, shape: tuple[int, int], capability: int) -> Choice:
    """The kernel for `tokens` rows and weights `shape` = (N, K) on a GPU of that capability."""
    return choose_by(_measured(capability), tokens, shape)


@cache
def capability_of(device: torch.device) -> int:
    """80 or 90, say: asked for at every product, and a microsecond each time."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def choose_by(table: dict[str, Bounds], tokens: int, shape: tuple[int, int]) -> Choice:
    """The kernel that a table of one capability names."""
    rows, width = shape
    for most, choice in table.get(f"{rows}x{width}", _DEFAULT):
        if tokens <= most:
            return choice
    return "library"


def read_table(path: Path, capability: int) -> dict[str, Bounds]:
    """What was measured on GPUs of that capability."""
    table = json.loads(path.read_text())
    return cast("dict[str, Bounds]", table.get(str(capability), {}))


@cache
def _measured(capability: int) -> dict[str, Bounds]:
    return read_table(_TABLE, capability)
