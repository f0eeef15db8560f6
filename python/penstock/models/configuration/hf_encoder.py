"""Helper functions with which the encoder families read and check config.json."""

from __future__ import annotations

from pathlib import Path

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_rope import RopeParameters
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec_limits import MAX_LAYERS


def encoder_rope(path: Path, rope: RopeParameters | None, theta: float, head_dim: int) -> RopeSpec:
    """Return the RoPE spec that the rotary keys `rope` describe. `theta`: the base if `rope` is
    None or has no base. Raises ModelError if the keys ask for RoPE scaling."""
    if rope is None:
        return RopeSpec(theta, head_dim)
    require(path, "rope_type", rope.rope_type or rope.type, "default", None)
    return RopeSpec(rope.rope_theta or theta, head_dim)


def num_encoder_layers(path: Path, count: int) -> int:
    """Return `count`, the number of layers. Raises ModelError if it is not in 1..MAX_LAYERS."""
    if not 1 <= count <= MAX_LAYERS:
        raise ModelError(f"{path}: number of layers {count} is not in 1..{MAX_LAYERS}")
    return count


def require(path: Path, key: str, value: object, *allowed: object) -> None:
    """Check that the `value` of `key` is one of the `allowed` values. Raises ModelError naming the
    key."""
    if value not in allowed:
        raise ModelError(f"{path}: {key} {value!r} is not supported, only {allowed[0]!r}")
