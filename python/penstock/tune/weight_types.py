"""The types of weights that an engine can serve, and the loss of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.base.errors import InvalidRequest
from penstock.config.weight_types import AS_STORED, INTEGERS, KNOWN, ON_GPU, parse_weight_type
from penstock.tune.types import Profile, Quality

TRIED: Final = (*INTEGERS, *ON_GPU)
"""The types that are measured if a request names none."""

MEAN_KL: Final[Mapping[str, float]] = {"int8": 0.00067, "int4": 0.0110}
"""The measured mean KL divergence of the next token from the stored weights, in nats. The table
"Loss" of docs/quantization.md has the same numbers with their measurements."""

_LABELS: Final[tuple[tuple[float, Quality], ...]] = (
    (0.002, "near-lossless"),
    (0.02, "good"),
    (0.1, "acceptable"),
)
"""(most nats, label)."""

_BITS_LABELS: Final[tuple[tuple[float, Quality], ...]] = (
    (8.0, "near-lossless"),
    (4.5, "good"),
    (3.4, "acceptable"),
)
"""(fewest bits per weight, label), for a type without a measurement."""

_ACCEPTED: Final[Mapping[Profile, tuple[Quality, ...]]] = {
    "quality": ("baseline", "near-lossless", "good", "acceptable", "degraded"),
    "balanced": ("baseline", "near-lossless", "good"),
    "fast": ("baseline", "near-lossless", "good", "acceptable"),
}


def quality_of(quantization: str | None, bits_per_weight: float) -> tuple[Quality, float | None]:
    """Return the label of a type, and its mean KL divergence if it was measured."""
    if quantization is None:
        return "baseline", None
    measured = MEAN_KL.get(quantization)
    if measured is None:
        found = (label for bits, label in _BITS_LABELS if bits_per_weight >= bits)
    else:
        found = (label for most, label in _LABELS if measured <= most)
    return next(found, "degraded"), measured


def is_accepted(quality: Quality, profile: Profile) -> bool:
    """Return whether a profile may recommend a type with this label."""
    return quality in _ACCEPTED[profile]


def requested_type(name: str) -> str | None:
    """Return the value of `quantization` for the name of a type in a request, None for the stored
    weights. Raises InvalidRequest that names the known types."""
    wanted = parse_weight_type(name.strip())
    if wanted is None:
        raise InvalidRequest(
            f"requested_isq is {name[:80]!r}; it must be one of {', '.join(KNOWN)}",
            field="requested_isq",
        )
    return None if wanted == AS_STORED else wanted
