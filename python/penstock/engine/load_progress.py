"""The progress of packing a model's weights, shown in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

SHOWN_AFTER_S: Final = 1.0
WIDTH: Final = 40


class LoadProgress:
    """A bar on standard error, where that is a terminal and packing takes over a second. Leaving
    the `with` block ends its line."""

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Packing begins now. `clock`: seconds."""
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._due_s = clock() + SHOWN_AFTER_S
        self._shown = False

    def __enter__(self) -> LoadProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write("\n")

    def update(self, done: int, layers: int) -> None:
        """Show the number of layers that are packed."""
        if not self._out.isatty() or self._clock() < self._due_s:
            return
        self._shown = True
        filled = WIDTH * done // layers
        bar = "#" * filled + "." * (WIDTH - filled)
        self._write(f"\rpacking weights [{bar}] {done}/{layers}")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
