"""Shows in the terminal how far the packing of a model's weights has got."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

SHOWN_AFTER_S: Final = 1.0
WIDTH: Final = 40


class LoadProgress:
    """A progress bar on standard error. It is shown only in a terminal and only after one second.
    Leaving the `with` block ends its line."""

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the clock. `out`: None for standard error. `clock`: returns seconds."""
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
        """Show that `done` of `layers` layers are packed."""
        if not self._out.isatty() or self._clock() < self._due_s:
            return
        self._shown = True
        filled = WIDTH * done // layers
        bar = "#" * filled + "." * (WIDTH - filled)
        self._write(f"\rpacking weights [{bar}] {done}/{layers}")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
