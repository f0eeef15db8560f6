"""Cites the files that server tools made, in the text of the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from penstock.dialog import ProducedFile

# The working directory of the container, as the model names it in links.
FOLDERS: Final = ("sandbox:/mnt/data/", "/mnt/data/")


def citations(text: str, files: Iterable[ProducedFile]) -> list[dict[str, Any]]:
    """Return a `container_file_citation` for each file. `start_index` and `end_index`: the first
    mention of the file in `text`, in characters, end exclusive; 0 and 0 if there is none."""
    return [_citation(file, *_mention(text, file.name)) for file in files]


def _citation(file: ProducedFile, start: int, end: int) -> dict[str, Any]:
    return {
        "type": "container_file_citation",
        "file_id": file.id,
        "filename": file.name,
        "container_id": file.container_id,
        "start_index": start,
        "end_index": end,
        "index": None,
    }


def _mention(text: str, name: str) -> tuple[int, int]:
    """Return (start, end) of a link to the file, else of its path, else of its name; else (0, 0).
    A name inside a longer name does not count."""
    if not name or name not in text:
        return 0, 0
    for folder in FOLDERS:
        found = re.search(re.escape(folder + name) + r"(?![\w-]|\.\w)", text)
        if found is not None:
            return found.span()
    found = re.search(r"(?<![\w./-])" + re.escape(name) + r"(?![\w-]|\.\w)", text)
    return found.span() if found is not None else (0, 0)
