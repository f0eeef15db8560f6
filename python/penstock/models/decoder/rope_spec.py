"""The configuration of a rotary embedding (RoPE) and of its scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TypeAlias

from penstock.base.errors import ModelError


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Linear RoPE scaling (position interpolation): positions are divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """RoPE scaling of Llama 3.1: low frequencies are divided by `factor` and high frequencies are
    kept, with a smooth transition between the two."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """RoPE scaling by YaRN (arXiv 2309.00071): high frequencies are kept, low frequencies are
    divided by `factor`, and a linear ramp joins the two. `attention_factor`: multiplies cosines and
    sines. `truncate`: round the ends of the ramp outward to whole components."""

    factor: float
    original_context: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """RoPE scaling by LongRoPE (arXiv 2402.13753): each frequency has its own divisor.

    - `short`: the divisors if the served context is at most `original_context`.
    - `long`: the divisors if the served context is longer.
    - `attention_factor`: multiplies cosines and sines.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int
    attention_factor: float


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The rotary embedding (RoPE) of the first `rotary_dim` components of each head, with base
    `theta`.

    - `axes`: for a model whose tokens have three positions (mRoPE), which of them turns each of the
      rotary_dim / 2 pairs: 0 time, 1 height, 2 width; () for a model with one position per token.
    - `turning_pairs`: only the first pairs, as many as this, turn; None: all.
    """

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None = None
    axes: tuple[int, ...] = ()
    turning_pairs: int | None = None


def check_rope(rope: RopeSpec, head_dim: int, where: str) -> None:
    """Check a rotary embedding of heads of at most `head_dim` elements. Raises ModelError that
    starts with `where` and names the field."""
    if rope.rotary_dim % 2 or not 2 <= rope.rotary_dim <= head_dim:
        raise ModelError(
            f"{where}: rotary dimension {rope.rotary_dim} is not an even number in 2..{head_dim}"
        )
    if rope.axes and len(rope.axes) != rope.rotary_dim // 2:
        raise ModelError(
            f"{where}: the sections of mRoPE have {len(rope.axes)} pairs, not"
            f" {rope.rotary_dim // 2}"
        )
    if rope.turning_pairs is not None and not 0 <= rope.turning_pairs <= rope.rotary_dim // 2:
        raise ModelError(
            f"{where}: {rope.turning_pairs} turning pairs are not in 0..{rope.rotary_dim // 2}"
        )
    if not 1 < rope.theta < math.inf:
        raise ModelError(f"{where}: rope base must be finite and above 1, not {rope.theta}")
    if rope.scaling is not None:
        check_scaling(rope.scaling, where)
    if isinstance(rope.scaling, LongRopeScaling):
        for name in ("short", "long"):
            given = len(getattr(rope.scaling, name))
            if given != rope.rotary_dim // 2:
                raise ModelError(
                    f"{where}: rope scaling: {name} must have {rope.rotary_dim // 2} factors,"
                    f" not {given}"
                )


def check_scaling(scaling: RopeScaling, where: str) -> None:
    """Check that all numbers of a RoPE scaling are positive: each is a divisor or the argument of a
    logarithm. Raises ModelError that starts with `where` and names the field."""
    for field in fields(scaling):
        given = getattr(scaling, field.name)
        for value in given if isinstance(given, tuple) else (given,):
            if not 0 < value < math.inf and field.name != "truncate":
                raise ModelError(f"{where}: rope scaling: {field.name} {value} is not positive")
