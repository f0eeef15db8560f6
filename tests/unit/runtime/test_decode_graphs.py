"""The graph sizes of decode steps, and when they are captured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

from penstock.runtime.gpu.cuda_graphs import (
    SIZES,
    CudaCapturer,
    DecodeGraphs,
    StepForm,
    sizes_up_to,
)

T = TypeVar("T")
ON_DEVICE, ON_CPU = StepForm(samples=True), StepForm(samples=False)
ADAPTED = StepForm(samples=True, adapted=True)


class Recorder:
    """Captures no graph: it records the requests, and a replay returns its own request."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.graphs = DecodeGraphs(self, 24, self._compute, self._clear)

    def capture(self, compute: Callable[[], T]) -> Callable[[], T]:
        captured = compute()
        self.notes.append("captured")

        def replay() -> T:
            self.notes.append("replayed")
            return captured

        return replay

    def _compute(self, size: int, form: StepForm) -> tuple[int, StepForm]:
        self.notes.append(f"computed {size}")
        return size, form

    def _clear(self, size: int, form: StepForm) -> None:
        self.notes.append(f"cleared {size}" + " with adapters" * form.adapted)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 4), (9, 12), (12, 12), (13, 16), (24, 24)])
def test_the_smallest_size_that_holds_the_rows_is_used(rows: int, size: int) -> None:
    assert Recorder().graphs.size_for(rows) == size


def test_sizes_end_with_the_first_that_holds_all_rows() -> None:
    assert sizes_up_to(1) == (1,)
    assert sizes_up_to(10) == (1, 2, 4, 8, 12)
    assert sizes_up_to(256) == SIZES
    assert sizes_up_to(300)[-2:] == (256, 384)


def test_the_largest_size_is_captured_first_and_each_once_over_padding_rows() -> None:
    recorder = Recorder()
    for _ in range(2):
        recorder.graphs.make(4, ON_DEVICE)
    assert recorder.notes == [
        *("cleared 24", "computed 24", "captured"),
        *("cleared 4", "computed 4", "captured"),
    ]
    assert recorder.graphs.captured == [(24, ON_DEVICE), (4, ON_DEVICE)]


def test_steps_with_adapters_have_separate_graphs() -> None:
    recorder = Recorder()
    recorder.graphs.make(24, ON_DEVICE)
    recorder.notes.clear()
    recorder.graphs.make(24, ADAPTED)
    recorder.graphs.make(24, ON_DEVICE)
    assert recorder.notes == ["cleared 24 with adapters", "computed 24", "captured"]
    assert recorder.graphs.replay(24, ON_DEVICE) == (24, ON_DEVICE)
    assert recorder.graphs.replay(24, ADAPTED) == (24, ADAPTED)


def test_the_largest_uncaptured_size_of_a_used_form_is_missing() -> None:
    graphs = Recorder().graphs
    assert graphs.missing() is None
    graphs.make(8, ON_DEVICE)
    graphs.make(1, ON_CPU)
    found = []
    while (missing := graphs.missing()) is not None:
        graphs.make(*missing)
        found.append(missing)
    sizes = (24, 16, 12, 8, 4, 2, 1)
    assert found == [
        *((size, ON_DEVICE) for size in sizes[1:] if size != 8),
        *((size, ON_CPU) for size in sizes[1:-1]),
    ]
    assert not any(form.adapted for _, form in graphs.captured)


def test_a_replay_returns_the_results_of_its_own_capture() -> None:
    recorder = Recorder()
    recorder.graphs.make(4, ON_DEVICE)
    recorder.graphs.make(4, ON_CPU)
    recorder.notes.clear()
    assert recorder.graphs.replay(4, ON_CPU) == (4, ON_CPU)
    assert recorder.graphs.replay(4, ON_DEVICE) == (4, ON_DEVICE)
    assert recorder.notes == ["replayed", "replayed"]


class InvalidatedGraph:
    """A capture that an error has ended: the driver refuses to end it again."""

    def capture_begin(self, **_: object) -> None:
        self.begun = True

    def capture_end(self) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")


class Stream:
    def synchronize(self) -> None:
        pass


def test_a_capture_that_fails_reports_the_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", InvalidatedGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    calls: list[int] = []

    def compute() -> None:
        calls.append(1)
        if len(calls) > CudaCapturer.WARM_UPS:
            raise ValueError("the kernel does not start")

    with pytest.raises(ValueError, match="the kernel does not start"):
        CudaCapturer(Stream()).capture(compute)
