"""Findings as they come: a line on the screen and a line of JSON each, so that a run that is cut
off has told all it found."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Record:
    """Appends to `folder`/results.jsonl, where a folder is given."""

    def __init__(self, section: str, folder: Path | None) -> None:
        self._section = section
        self._file = None if folder is None else folder / "results.jsonl"
        self._began = time.perf_counter()

    def title(self, text: str) -> None:
        print(f"\n== {self._section}: {text}", flush=True)

    def note(self, text: str) -> None:
        """Something to read, kept with the findings."""
        self._write({"note": text})
        print(f"   {text}", flush=True)

    def line(self, name: str, **figures: float | int | str | None) -> None:
        """One finding: its name and figures, those of floats with four digits."""
        self._write({"name": name, **figures})
        shown = "  ".join(f"{key} {_shown(value)}" for key, value in figures.items())
        print(f"{name:<34} {shown}", flush=True)

    def table(self, name: str, found: dict[str, Any], *, shown: dict[str, int]) -> None:
        """One finding of any shape for the file; on the screen `shown`, in MiB."""
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
