"""Selects the kernel of a matrix product by the shape of the weights and the number of rows.

Dense weights are multiplied by our streaming kernel ("stream"), by the CUDA library's kernel for up
to 128 rows ("staged") or by cuBLAS ("library"). The table `kernels/tuning/linear.json`, measured by
`bench/device`, maps capability -> "NxC" -> pairs (most rows, kernel for up to that number of rows),
ascending. `_DEFAULT` applies to shapes that the table lacks: up to 16 rows, reading the weights
costs most, and the streaming kernel keeps many loads in flight; for more rows cuBLAS is hard to
beat. Without the CUDA library, cuBLAS replaces "staged"; for 8-bit floats, Triton's "widen" does.

For 8-bit floats the table maps "CAPABILITY-float8" -> "NxC" -> pairs. With few rows the weights are
widened ("widen"); with more rows the activations are rounded to 8 bits, if tensor cores multiply
8-bit floats, by Triton's kernel ("float8") or cuBLAS ("library", which "float8" replaces if cuBLAS
has no kernel). So the bits of a row's result depend on the number of rows in its step,
except with `--deterministic`, which uses one kernel for any number of rows. For experts the table
maps "CAPABILITY-float8-experts" -> "NxC" of one expert -> pairs with the mean number of rows per
expert.
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
Float8Choice = Literal["widen", "staged", "float8", "library"]
Bounds = tuple[tuple[int, Choice | Float8Choice], ...]

TABLE = Path(__file__).parent.parent / "tuning" / "linear.json"
_DEFAULT: Bounds = ((16, "stream"),)
_FLOAT8_DEFAULT: Bounds = ((16, "widen"),)
FLOAT8_CAPABILITY = 89
_FLOAT8_COLUMNS = 128


class _Forced:
    """Settings of the process that measurements and tests change. `staged`: use "staged" for all
    products."""

    staged = False


@contextmanager
def staged() -> Iterator[None]:
    """Use the kernel "staged" for every product that it supports, in the whole process, inside the
    context. For measurements and tests."""
    before, _Forced.staged = _Forced.staged, True
    try:
        yield
    finally:
        _Forced.staged = before


def choose(tokens: int, shape: tuple[int, int], capability: int) -> Choice:
    """Return the kernel for `tokens` rows and dense weights of `shape` (N, C). `capability`:
    compute capability of the GPU times 10."""
    if _Forced.staged:
        return "staged"
    return choose_by(_measured(capability), tokens, shape)


@cache
def capability_of(device: torch.device) -> int:
    """Return the compute capability of `device` times 10. Cached, because every product needs it
    and the query costs a microsecond."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def choose_by(table: dict[str, Bounds], tokens: int, shape: tuple[int, int]) -> Choice:
    """Return the kernel for `tokens` rows and dense weights of `shape` (N, C). `table`: the
    measurements of one capability."""
    rows, width = shape
    for most, choice in table.get(f"{rows}x{width}", _DEFAULT):
        if tokens <= most:
            return cast("Choice", choice)
    return "library"


def choose_float8(
    tokens: int, shape: tuple[int, int], capability: int, invariant: bool
) -> Float8Choice:
    """Return the kernel for `tokens` rows and weights of `shape` (N, C) in 8-bit floats.
    `invariant`: select one kernel for any number of rows."""
    if _Forced.staged and not invariant:
        return "staged"
    return _choose_float8("float8", tokens, shape, capability, invariant, "library")


def choose_expert_float8(
    rows_each: int, shape: tuple[int, int], capability: int, invariant: bool
) -> Float8Choice:
    """Return the kernel for experts whose weights have `shape` (N, C), in 8-bit floats.
    `rows_each`: mean number of rows per expert."""
    return _choose_float8("float8-experts", rows_each, shape, capability, invariant)


def _choose_float8(
    table: str,
    tokens: int,
    shape: tuple[int, int],
    capability: int,
    invariant: bool,
    many: Float8Choice = "float8",
) -> Float8Choice:
    """`many`: the kernel beyond the rows that the table has."""
    rows, width = shape
    if capability < FLOAT8_CAPABILITY or width % _FLOAT8_COLUMNS:
        return "widen"
    if invariant:
        return "float8"
    measured = _measured(f"{capability}-{table}").get(f"{rows}x{width}", _FLOAT8_DEFAULT)
    for most, choice in measured:
        if tokens <= most:
            return cast("Float8Choice", choice)
    return many


def float8_capability(device: torch.device) -> int:
    """Return the compute capability of a GPU times 10; 90 for a CPU, on which kernels are
    interpreted."""
    return capability_of(device) if device.type == "cuda" else 90


def read_table(path: Path, key: int | str) -> dict[str, Bounds]:
    """Return the measured kernels per weight shape from the table at `path`. `key`: a capability
    times 10, or "CAPABILITY-float8" for 8-bit floats."""
    table = json.loads(path.read_text())
    return cast("dict[str, Bounds]", table.get(str(key), {}))


@cache
def _measured(key: int | str) -> dict[str, Bounds]:
    return read_table(TABLE, key)
