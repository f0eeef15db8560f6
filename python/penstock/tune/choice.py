"""Chooses a candidate for a profile."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.tune.types import Candidate, Profile
from penstock.tune.weight_types import is_accepted

ANSWER = 128
"""Tokens of the answer in the request for which the fastest type is chosen."""

_BEST_FIRST = ("baseline", "near-lossless", "good", "acceptable", "degraded")


def choose(candidates: Sequence[Candidate], profile: Profile) -> int | None:
    """Return the index of the candidate for `profile`, None if no candidate has any context.

    Candidates that fit with the context asked for come before others, and the others by their
    context. `quality` takes the smallest loss; `balanced` and `fast` the shortest time of a request
    among the types that they accept, or the smallest loss if they accept none.
    """
    possible = [i for i, one in enumerate(candidates) if one.max_context_tokens > 0]
    if not possible:
        return None
    fitting = [i for i in possible if candidates[i].fit_status == "fits"]
    if not fitting:
        return max(
            possible, key=lambda i: (candidates[i].max_context_tokens, -_loss(candidates[i]))
        )
    accepted = [i for i in fitting if is_accepted(candidates[i].quality, profile)]
    if profile == "quality" or not accepted:
        return min(fitting, key=lambda i: (_loss(candidates[i]), _seconds(candidates[i])))
    return min(accepted, key=lambda i: (_seconds(candidates[i]), _loss(candidates[i])))


def _loss(candidate: Candidate) -> float:
    """Return a number that orders candidates by their loss."""
    return _BEST_FIRST.index(candidate.quality) + min(candidate.mean_kl or 0.0, 0.999)


def _seconds(candidate: Candidate) -> float:
    """Return the time of a request with the measured prompt and ANSWER tokens, if all sequences run
    at once; a number that grows with the size for candidates without a measured speed."""
    speed = candidate.speed
    if speed is None:
        return float(candidate.estimated_size_bytes)
    return (
        speed.prompt_tokens / speed.prefill_tokens_per_s + ANSWER / speed.batch_decode_tokens_per_s
    )
