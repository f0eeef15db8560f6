"""The largest sizes of models that are accepted, and the check of sizes."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.base.errors import ModelError

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 24
MAX_CONTEXT = 1 << 24
MAX_EXPERTS = 1024
MAX_EXPERTS_IN_ALL = 1 << 16
LEAST_FACTOR = 1e-9


def check_sizes(where: str, limits: Mapping[str, tuple[int, int]]) -> None:
    """Check that each size is in 1..limit. `limits`: name of the size -> (size, limit). Raises
    ModelError that starts with `where` and names the first size out of range."""
    for name, (value, limit) in limits.items():
        if not 1 <= value <= limit:
            raise ModelError(f"{where}: {name} {value} is not in 1..{limit}")


def check_factor(factor: float, name: str, where: str) -> None:
    """Check that a factor on weights or activations can be a float32: finite, and neither zero nor
    so small or large that products with it are. Raises ModelError that starts with `where` and
    names the factor."""
    if not LEAST_FACTOR <= abs(factor) <= 1 / LEAST_FACTOR:
        raise ModelError(
            f"{where}: {name} {factor} is not in {LEAST_FACTOR}..{1 / LEAST_FACTOR}, up to its sign"
        )
