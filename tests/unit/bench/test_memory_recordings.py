"""Recordings of device memory match the memory formula: those in `bench/results`, and one made here
by a rehearsal."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.device.engine import SMALL, open_runtime
from bench.device.machine import open_bench
from bench.device.memory import LiveBytes, deviations, used
from bench.device.model_shapes import SHAPES
from bench.device.result_log import Record

RESULTS = Path(__file__).parents[3] / "bench" / "results"


def recordings(path: Path) -> list[dict[str, Any]]:
    """Return the memory recordings among the results of a run."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [one for one in found if one.get("name") == "memory"]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rehearsal")
    bench = open_bench(True, "auto")
    shape = SHAPES["qwen3-0.6b"].small()
    with open_runtime(bench, Record("qwen3-0.6b", folder), shape, SMALL):
        pass
    (recording,) = recordings(folder / "results.jsonl")
    return recording


def test_recordings_match_the_formula(rehearsed: dict[str, Any]) -> None:
    committed = [one for path in sorted(RESULTS.rglob("*.jsonl")) for one in recordings(path)]
    for recording in [rehearsed, *committed]:
        assert deviations(recording) == [], recording.get("model")


def test_every_stage_of_a_start_is_recorded(rehearsed: dict[str, Any]) -> None:
    stages = [one["stage"] for one in rehearsed["stages"]]
    assert stages == ["before", "weights", "cache", "kept", "slots", "rows", "served"]
    assert used(rehearsed)["cache"] == rehearsed["terms"]["cache"]


@pytest.mark.parametrize("term", ["weights", "cache", "work", "rows"])
@pytest.mark.parametrize("factor", [0.2, 20])
def test_a_term_that_is_wrong_is_named(rehearsed: dict[str, Any], term: str, factor: float) -> None:
    larger = _scaled(rehearsed, 100)  # large enough to exceed the tolerance
    assert deviations(larger) == []
    larger["terms"][term] *= factor
    (wrong,) = deviations(larger)
    assert wrong.startswith("steps" if term == "work" else term)


def _scaled(recording: dict[str, Any], factor: int) -> dict[str, Any]:
    """Return the recording of a model that is `factor` times larger in every term."""
    larger = copy.deepcopy(recording)
    for name in larger["terms"]:
        larger["terms"][name] *= factor
    for stage in larger["stages"]:
        stage["allocated"] *= factor
        stage["peak"] *= factor
    return larger


def test_the_total_is_checked_on_a_gpu(rehearsed: dict[str, Any]) -> None:
    recording = copy.deepcopy(rehearsed)
    total = sum(recording["terms"].values())
    for stage, taken in zip(recording["stages"], [0, 0.2, 0.8, 0.8, 0.8, 0.9, 1.1], strict=True):
        stage["free"] = 2 * total - int(taken * total)
    (wrong,) = deviations(recording)
    assert wrong == f"total: {int(1.1 * total)} bytes of {total}"


def test_live_bytes_count_existing_tensors_only() -> None:
    with LiveBytes() as live:
        kept = torch.zeros(100)
        gone = kept + 1
        view = gone[:10]
        assert live.now == 800
        del gone
        assert live.now == 800
        del view
        assert live.now == 400
    assert live.peak == 800
