"""Result log: one line on the screen and one line of JSON per result, written at once, so that a
run that is cut off keeps its results."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Record:
    """Prints results and appends them to results.jsonl in `folder`, unless that is None."""

    def __init__(self, section: str, folder: Path | None) -> None:
        self._section = section
        self._file = None if folder is None else folder / "results.jsonl"
        self._began = time.perf_counter()

    def title(self, text: str) -> None:
        print(f"\n== {self._section}: {text}", flush=True)

    def note(self, text: str) -> None:
        """Write a text that is kept with the results."""
        self._write({"note": text})
        print(f"   {text}", flush=True)

    def line(self, name: str, **figures: float | int | str | None) -> None:
        """Write one result: its name and figures, floats with four digits."""
        self._write({"name": name, **figures})
        shown = "  ".join(f"{key} {_shown(value)}" for key, value in figures.items())
        print(f"{name:<34} {shown}", flush=True)

    def table(self, name: str, found: dict[str, Any], *, shown: dict[str, int]) -> None:
        """Write one result of any shape to the file, and print `shown`, in MiB."""
        self._write({"name": name, **found})
        columns = "  ".join(f"{key} {value / 2**20:.1f}" for key, value in shown.items())
        print(f"{name + ', MiB':<34} {columns}", flush=True)

    def _write(self, found: dict[str, Any]) -> None:
        if self._file is None:
            return
        at_s = round(time.perf_counter() - self._began, 1)
        with self._file.open("a") as file:
            file.write(json.dumps({"section": self._section, "at_s": at_s, **found}) + "\n")


def _shown(value: float | int | str | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
