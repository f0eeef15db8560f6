"""Checks and helpers that every encoder family applies to its config.json."""

from __future__ import annotations

from pathlib import Path

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_rope import RopeParameters
from penstock.models.decoder.spec import MAX_LAYERS, RopeSpec


def encoder_rope(path: Path, rope: RopeParameters | None, theta: float, head_dim: int) -> RopeSpec:
    """Return the spec of rotary keys; `theta` is the base if they name none. Raises ModelError for
    a scaling."""
    if rope is None:
        return RopeSpec(theta, head_dim)
    require(path, "rope_type", rope.rope_type or rope.type, "default", None)
    return RopeSpec(rope.rope_theta or theta, head_dim)


def num_encoder_layers(path: Path, count: int) -> int:
    """Return `count`. Raises ModelError if it is out of range."""
    if not 1 <= count <= MAX_LAYERS:
        raise ModelError(f"{path}: number of layers {count} is not in 1..{MAX_LAYERS}")
    return count


def require(path: Path, key: str, value: object, *allowed: object) -> None:
    """Raise ModelError if `value`, of `key`, is not one of `allowed`."""
    if value not in allowed:
        raise ModelError(f"{path}: {key} {value!r} is not supported, only {allowed[0]!r}")
