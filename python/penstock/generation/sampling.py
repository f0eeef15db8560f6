"""The sampling of one choice: the request's wishes over the model's defaults, and its seed."""

from __future__ import annotations

import secrets
from typing import Final

from penstock.dialog import Sampling

SEED_BITS: Final = 63
_MASK: Final = (1 << SEED_BITS) - 1
_STRIDE: Final = 0x1E3779B97F4A7C15
"""Odd, and far from small: the seeds of a request's choices are not those of its neighbours."""


def resolve_sampling(wanted: Sampling, defaults: Sampling) -> Sampling:
    """Fill what the request leaves open, first from the model's generation defaults.

    Afterwards `temperature` is a number (1 where nobody says; 0, greedy, for a `top_p` of 0), and
    None means off for the others.
    """
    temperature = _first(wanted.temperature, defaults.temperature, 1.0)
    top_p = _first(wanted.top_p, defaults.top_p, 1.0)
    min_p = _first(wanted.min_p, defaults.min_p, 0.0)
    top_k = wanted.top_k if wanted.top_k is not None else defaults.top_k
    return Sampling(
        temperature=0.0 if top_p == 0.0 else temperature,
        top_k=top_k if top_k is not None and top_k > 0 else None,
        top_p=top_p if 0.0 < top_p < 1.0 else None,
        min_p=min_p if min_p > 0.0 else None,
    )


def seeds(wanted: int | None, n: int) -> list[int]:
    """One seed a choice, of 63 bits; the first is the request's own where it has one."""
    base = secrets.randbits(SEED_BITS) if wanted is None else wanted
    return [(base + index * _STRIDE) & _MASK for index in range(n)]


def _first(wanted: float | None, default: float | None, otherwise: float) -> float:
    if wanted is not None:
        return wanted
    return default if default is not None else otherwise
