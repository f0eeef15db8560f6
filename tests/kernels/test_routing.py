"""`Routing`: settings that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kernels.routing import Routing


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 0}, "top_k: must be at least 1, got 0"),
        ({"groups": 4, "groups_per_token": 5}, "groups_per_token: must be 1 to 4, .* got 5"),
        ({"groups": 4, "groups_per_token": 0}, "groups_per_token: must be 1 to 4, .* got 0"),
        ({"best_of_group": 3}, "best_of_group: must be 1 or 2, got 3"),
        ({"scoring": "sparsemixer", "top_k": 1}, "scoring: sparsemixer needs top_k 2"),
        ({"scoring": "sparsemixer", "groups": 2}, "scoring: sparsemixer needs top_k 2"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Routing(**{"top_k": 2, **settings})
