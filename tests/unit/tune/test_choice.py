"""The profiles choose among candidates by loss, speed and memory."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.tune.choice import choose
from penstock.tune.types import Candidate, MemoryEstimate, Profile, Quality, SpeedEstimate

MEMORY = MemoryEstimate(1, 1, 1, 3)


def candidate(name: str, quality: Quality, rate: float | None, **other: Any) -> Candidate:
    fields: dict[str, Any] = {
        "isq": name,
        "isq_name": name,
        "estimated_size_bytes": 100,
        "vram_usage_percent": 0.5,
        "max_context_tokens": 8192,
        "context_is_model_max": True,
        "quality": quality,
        "mean_kl": None,
        "fit_status": "fits",
        "recommended": False,
        "memory": MEMORY,
        "caches": (),
        "speed": None
        if rate is None
        else SpeedEstimate(100 * rate, rate, rate, rate, 1, 512, 2, 2),
    }
    return Candidate(**(fields | other))


STORED = candidate("none", "baseline", 5.0)
INT8 = candidate("int8", "near-lossless", 9.0)
INT4 = candidate("int4", "good", 14.0)
INT3 = candidate("int3", "acceptable", 18.0)
INT2 = candidate("int2", "degraded", 20.0)
ALL = [STORED, INT8, INT4, INT3, INT2]


@pytest.mark.parametrize(
    ("profile", "best"), [("quality", STORED), ("balanced", INT4), ("fast", INT3)]
)
def test_each_profile_takes_the_best_of_the_types_that_it_accepts(
    profile: Profile, best: Candidate
) -> None:
    for candidates in (ALL, ALL[::-1]):
        chosen = choose(candidates, profile)
        assert chosen is not None and candidates[chosen] is best


def too_large(name: str, quality: Quality, context: int) -> Candidate:
    return candidate(name, quality, 5.0, fit_status="too-large", max_context_tokens=context)


@pytest.mark.parametrize("profile", ["quality", "balanced", "fast"])
def test_a_type_that_fits_comes_before_one_that_does_not(profile: Profile) -> None:
    candidates = [too_large("none", "baseline", 2048), INT2]
    assert choose(candidates, profile) == 1


def test_the_longest_context_wins_if_nothing_fits() -> None:
    some = [
        too_large("none", "baseline", 0),
        too_large("int8", "near-lossless", 512),
        too_large("int4", "good", 1024),
    ]
    assert choose(some, "quality") == 2
    assert choose(some[:1], "quality") is None
    assert choose([], "fast") is None


def test_a_slower_type_with_more_loss_is_never_chosen() -> None:
    slow = candidate("int4", "good", 4.0)
    for profile in ("quality", "balanced", "fast"):
        assert choose([STORED, slow], profile) == 0


def test_types_without_a_measured_speed_are_ordered_by_size() -> None:
    stored = candidate("none", "baseline", None, estimated_size_bytes=900)
    small = candidate("int4", "good", None, estimated_size_bytes=300)
    assert choose([stored, small], "balanced") == 1
    assert choose([stored, small], "quality") == 0


def test_mean_kl_orders_types_with_one_label() -> None:
    rough = candidate("a", "good", 9.0, mean_kl=0.019)
    fine = candidate("b", "good", 8.0, mean_kl=0.004)
    assert choose([rough, fine], "quality") == 1
