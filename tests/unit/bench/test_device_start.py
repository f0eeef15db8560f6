"""A start frees the device memory of earlier measurements before it plans its own."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.device import engine
from bench.device.machine import Bench
from bench.device.model_shapes import SHAPES
from bench.device.result_log import Record
from penstock.kernels.reference import ReferenceOps


class Started(Exception):
    """Raised at the point where memory would be planned."""


class Stages(nullcontext[None]):
    def reached(self) -> None:
        """Do nothing."""


def test_device_memory_is_freed_before_a_start_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def note(what: str) -> Any:
        return lambda *arguments: done.append(what)

    def start(bench: Bench, folder: Path, *others: Any, **changes: Any) -> None:
        raise Started

    monkeypatch.setattr(engine, "write_checkpoint", note("drawn on the device"))
    monkeypatch.setattr(torch.cuda, "empty_cache", note("given back"))
    monkeypatch.setattr(engine, "MemoryStages", lambda device: Stages())
    monkeypatch.setattr(engine, "start", start)
    bench = Bench("cuda:0", torch.bfloat16, ReferenceOps(), rehearsed=False)
    with (
        pytest.raises(Started),
        engine.open_runtime(bench, Record("m", None), SHAPES["qwen3-0.6b"], engine.SMALL),
    ):
        pytest.fail("nothing was started")
    assert done == ["drawn on the device", "given back"]
