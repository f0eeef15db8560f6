"""Which graph a step of decodes is replayed by, and when it is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from penstock.runtime.gpu_graphs import SIZES, DecodeGraphs, sizes_up_to

T = TypeVar("T")


class Recorder:
    """Captures nothing: it notes what it is asked for, and that a replay is of that."""

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

    def _compute(self, size: int, draws: bool) -> tuple[int, bool]:
        self.notes.append(f"computed {size}")
        return size, draws

    def _clear(self, size: int) -> None:
        self.notes.append(f"cleared {size}")


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 4), (9, 12), (12, 12), (13, 16), (24, 24)])
def test_the_least_size_that_holds_the_rows_serves(rows: int, size: int) -> None:
    assert Recorder().graphs.size_for(rows) == size


def test_sizes_end_with_the_first_that_holds_all_rows() -> None:
    assert sizes_up_to(1) == (1,)
    assert sizes_up_to(10) == (1, 2, 4, 8, 12)
    assert sizes_up_to(256) == SIZES
    assert sizes_up_to(300)[-2:] == (256, 384)


def test_the_largest_is_captured_first_and_each_once_over_rows_of_nobody() -> None:
    recorder = Recorder()
    for _ in range(2):
        recorder.graphs.make(4, True)
    assert recorder.notes == [
        *("cleared 24", "computed 24", "captured"),
        *("cleared 4", "computed 4", "captured"),
    ]
    assert recorder.graphs.captured == [(24, True), (4, True)]


def test_a_replay_gives_the_results_of_its_own_capture() -> None:
    recorder = Recorder()
    recorder.graphs.make(4, True)
    recorder.graphs.make(4, False)
    recorder.notes.clear()
    assert recorder.graphs.replay(4, False) == (4, False)
    assert recorder.graphs.replay(4, True) == (4, True)
    assert recorder.notes == ["replayed", "replayed"]
