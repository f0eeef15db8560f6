"""Progress of packing the weights, shown in a terminal if packing takes long."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from penstock.config import EngineSettings
from penstock.engine import load
from penstock.engine.load_progress import SHOWN_AFTER_S, LoadProgress
from tests.support.checkpoints.small_llama import LAYERS, write_small_llama


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def after_packing(out: io.StringIO, seconds_each: float, layers: int, fails_after: int = 99) -> str:
    """Return the shown text when each layer takes this long."""
    now = 0.0
    with LoadProgress(out, lambda: now) as bar:
        for done in range(1, min(layers, fails_after) + 1):
            now += seconds_each
            bar.update(done, layers)
    return out.getvalue()


def test_a_long_packing_has_a_bar_that_ends_with_its_line() -> None:
    told = after_packing(Terminal(), SHOWN_AFTER_S * 0.6, 4)
    lines = told.split("\r")
    assert lines[0] == ""
    assert [line.rpartition(" ")[2] for line in lines[1:]] == ["2/4", "3/4", "4/4\n"]
    assert [line.count("#") / (line.count("#") + line.count(".")) for line in lines[1:]] == [
        *(0.5, 0.75, 1.0)
    ]


def test_a_bar_of_what_failed_ends_with_its_line_too() -> None:
    told = after_packing(Terminal(), SHOWN_AFTER_S, 4, fails_after=2)
    assert told.endswith("2/4\n")


@pytest.mark.parametrize(("out", "seconds"), [(Terminal(), 0.1), (io.StringIO(), 100.0)])
def test_a_short_packing_and_one_without_a_terminal_tell_nothing(
    out: io.StringIO, seconds: float
) -> None:
    assert after_packing(out, seconds * SHOWN_AFTER_S, 4) == ""


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_a_load_has_the_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    terminal = Terminal()
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(load, "LoadProgress", lambda: LoadProgress(terminal, lambda: next(clock)))
    model = write_small_llama(tmp_path / "m")
    settings = EngineSettings(model=str(model), threads=1, kernel_backend=kernels)  # type: ignore[arg-type]
    load.load_core(settings).close()
    assert terminal.getvalue().endswith(f" {LAYERS}/{LAYERS}\n")
