"""Resolves the sampling parameters of a request and the seed of each choice."""

from __future__ import annotations

import secrets
from typing import Any, Final

from penstock.dialog import Sampling
from penstock.generation.dry_breakers import DryBreakers

SEED_BITS: Final = 63
_MASK: Final = (1 << SEED_BITS) - 1
_STRIDE: Final = 0x1E3779B97F4A7C15
"""Difference between the seeds of consecutive choices: odd and large, so that requests with
consecutive seeds do not share the seeds of their choices."""
DRY_BASE: Final = 1.75
DRY_ALLOWED_LENGTH: Final = 2
DRY_BREAKERS: Final = ("\n", ":", '"', "*")


def resolve_sampling(wanted: Sampling, defaults: Sampling, breakers: DryBreakers) -> Sampling:
    """Return the sampling parameters of a request, with defaults for fields that it does not set.

    `defaults`: the model's defaults; a field that they do not set is off. In the result,
    `temperature` is a number: 1 by default, 0 (greedy) for a `top_p` of 0. All other parameters are
    None if they are off. With DRY, all DRY parameters are set, and `dry_breakers` are token
    sequences, which may require reading the whole vocabulary.
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
        presence_penalty=wanted.presence_penalty or None,
        frequency_penalty=wanted.frequency_penalty or None,
        repetition_penalty=_repetition(wanted, defaults),
        logit_bias=wanted.logit_bias or None,
        **(_dry(wanted, breakers) if uses_dry(wanted) else {}),
    )


def uses_dry(wanted: Sampling) -> bool:
    """Whether the request uses DRY. Model defaults never do."""
    return bool(wanted.dry_multiplier)


def _repetition(wanted: Sampling, defaults: Sampling) -> float | None:
    penalty = _first(wanted.repetition_penalty, defaults.repetition_penalty, 1.0)
    return penalty if penalty > 0.0 and penalty != 1.0 else None


def _dry(wanted: Sampling, breakers: DryBreakers) -> dict[str, Any]:
    strings, allowed = wanted.dry_sequence_breakers, wanted.dry_allowed_length
    return {
        "dry_multiplier": wanted.dry_multiplier,
        "dry_base": _first(wanted.dry_base, None, DRY_BASE),
        "dry_allowed_length": DRY_ALLOWED_LENGTH if allowed is None else allowed,
        "dry_breakers": breakers.sequences(DRY_BREAKERS if strings is None else strings),
    }


def seeds(wanted: int | None, n: int) -> list[int]:
    """Return a 63-bit seed for each of `n` choices. The first is `wanted`, or random if None."""
    base = secrets.randbits(SEED_BITS) if wanted is None else wanted
    return [(base + index * _STRIDE) & _MASK for index in range(n)]


def _first(wanted: float | None, default: float | None, otherwise: float) -> float:
    if wanted is not None:
        return wanted
    return default if default is not None else otherwise
