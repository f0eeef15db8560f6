"""Selection of the kernel of a product: of dense weights, ours, which streams them, or the
library's; and of weights in 8-bit floats.

The choice depends on the shape of the weights and the number of rows, by a table that
`bench/device` measured on the GPU (`kernels/tuning/linear.json`: capability -> "NxC" -> pairs of
the most tokens and the kernel that serves up to there, ascending). `_DEFAULT` serves a shape
without an entry: up to a tile's rows only the weights are read, and streaming them depends on loads
in flight; beyond, the library's tiles are hard to beat.

"staged" names the CUDA library's kernel for up to 128 rows. Without it, cuBLAS computes products of
floats, and Triton's widening kernel those of 8-bit floats.

For 8-bit floats the table has "CAPABILITY-float8" -> "NxC" -> pairs in the same way: few rows are
multiplied by widened weights ("widen"), more are rounded to 8 bits themselves ("float8") if tensor
cores multiply these. So the bits of a row depend on which side of that bound the number of rows of
its step is, except with `--deterministic`, which uses one kernel for all. Experts have
"CAPABILITY-float8-experts" -> "NxC" of one expert, by the mean number of rows per expert.
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
    """The table of the process; measurements and tests replace it."""

    staged = False


@contextmanager
def staged() -> Iterator[None]:
    """Let the kernel "staged" compute every product for which it has a form inside the context, in
    the whole process: for measurements and tests."""
    before, _Forced.staged = _Forced.staged, True
    try:
        yield
    finally:
        _Forced.staged = before


def choose(tokens: int, shape: tuple[int, int], capability: int) -> Choice:
    """Return the kernel for `tokens` rows and weights `shape` = (N, C) on a GPU of that
    capability."""
    if _Forced.staged:
        return "staged"
    return choose_by(_measured(capability), tokens, shape)


@cache
def capability_of(device: torch.device) -> int:
    """Return the compute capability times 10. Cached: every product needs it, and asking costs a
    microsecond."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def choose_by(table: dict[str, Bounds], tokens: int, shape: tuple[int, int]) -> Choice:
    """Return the kernel that the table of one capability names."""
    rows, width = shape
    for most, choice in table.get(f"{rows}x{width}", _DEFAULT):
        if tokens <= most:
            return cast("Choice", choice)
    return "library"


def choose_float8(
    tokens: int, shape: tuple[int, int], capability: int, invariant: bool
) -> Float8Choice:
    """Return the kernel for weights in 8-bit floats. `invariant`: one choice for any number of
    rows."""
    if _Forced.staged and not invariant:
        return "staged"
    return _choose_float8("float8", tokens, shape, capability, invariant)


def choose_expert_float8(
    rows_each: int, shape: tuple[int, int], capability: int, invariant: bool
) -> Float8Choice:
    """Return the kernel for experts of `shape` with a mean of `rows_each` rows."""
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
    """Return the capability of a GPU; without one, the newest that is compiled for."""
    return capability_of(device) if device.type == "cuda" else 90


def read_table(path: Path, key: int | str) -> dict[str, Bounds]:
    """Read the measurements of GPUs of a capability; those of 8-bit floats are under
    "CAPABILITY-float8"."""
    table = json.loads(path.read_text())
    return cast("dict[str, Bounds]", table.get(str(key), {}))


@cache
def _measured(key: int | str) -> dict[str, Bounds]:
    return read_table(_TABLE, key)
