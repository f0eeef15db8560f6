"""Which kernel makes a product of dense weights: ours, which streams them, or the library's; and
which one of weights in 8-bit floats.

The choice depends on the shape of the weights and the number of rows, by a table that
`bench/device` measured on the GPU (`kernels/tuning/linear.json`: capability -> "NxK" -> pairs of
the most tokens and the kernel that serves up to there, ascending). A shape without an entry goes
by `_DEFAULT`: up to a tile's rows the weights are all that is read, and streaming them is a matter
of loads in flight; beyond, the library's tiles are hard to beat.

"staged" names the CUDA library's kernel of up to 128 rows. Without it, cuBLAS makes products of
floats, and Triton's widening kernel those of 8-bit floats.

For 8-bit floats the table has "CAPABILITY-float8" -> "NxK" -> pairs in the same way: few rows are
multiplied as they are with widened weights ("widen"), more are rounded to 8 bits themselves
("float8"), where tensor cores take these. So a row's bits depend on the number of rows of its step
up to that bound and beyond it, but for `--deterministic`, where all are made in one way. Experts
have "CAPABILITY-float8-experts" -> "NxK" of one of them, by the rows that one has on the mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal, cast

import torch

Choice = Literal["stream", "staged", "library"]
Float8Choice = Literal["widen", "staged", "float8"]
Bounds = tuple[tuple[int, Choice | Float8Choice], ...]

_TABLE = Path(__file__).parent.parent / "tuning" / "linear.json"
_DEFAULT: Bounds = ((16, "stream"),)
_FLOAT8_DEFAULT: Bounds = ((16, "widen"),)
FLOAT8_CAPABILITY = 89
_FLOAT8_COLUMNS = 128


class _Forced:
    """The table of the process; trials and tests replace it."""

    staged = False


@contextmanager
def staged() -> Iterator[None]:
    """Within, let the kernel "staged" make every product for which it has a form, in the whole
    process: for trials and tests."""
    before, _Forced.staged = _Forced.staged, True
    try:
        yield
    finally:
        _Forced.staged = before


def choose(tokens: int, shape: tuple[int, int], capability: int) -> Choice:
    """The kernel for `tokens` rows and weights `shape` = (N, K) on a GPU of that capability."""
    if _Forced.staged:
        return "staged"
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
            return cast("Choice", choice)
    return "library"


def choose_float8(
    tokens: int, shape: tuple[int, int], capability: int, invariant: bool
) -> Float8Choice:
    """The same for weights in 8-bit floats. `invariant`: one choice for any number of rows."""
    if _Forced.staged and not invariant:
        return "staged"
    return _choose_float8("float8", tokens, shape, capability, invariant)


def choose_expert_float8(
    rows_each: int, shape: tuple[int, int], capability: int, invariant: bool
) -> Float8Choice:
    """The same for experts of `shape`, each of which has `rows_each` rows on the mean."""
    return _choose_float8("float8-experts", rows_each, shape, capability, invariant)


def _choose_float8(
    table: str, tokens: int, shape: tuple[int, int], capability: int, invariant: bool
) -> Float8Choice:
    rows, width = shape
    if capability < FLOAT8_CAPABILITY or width % _FLOAT8_COLUMNS:
        return "widen"
    if invariant:
        return "float8"
    measured = _measured(f"{capability}-{table}").get(f"{rows}x{width}", _FLOAT8_DEFAULT)
    for most, choice in measured:
        if tokens <= most:
            return cast("Float8Choice", choice)
    return "float8"


def float8_capability(device: torch.device) -> int:
    """Of a GPU; without one, that of the newest which is compiled for."""
    return capability_of(device) if device.type == "cuda" else 90


def read_table(path: Path, key: int | str) -> dict[str, Bounds]:
    """What was measured on GPUs of a capability; of 8-bit floats under "CAPABILITY-float8"."""
    table = json.loads(path.read_text())
    return cast("dict[str, Bounds]", table.get(str(key), {}))


@cache
def _measured(key: int | str) -> dict[str, Bounds]:
    return read_table(_TABLE, key)
