"""The file names of split GGUF files: NAME-00001-of-00003.gguf and so on."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def split_file_names(name: str) -> list[str]:
    """Return all file names of the split set whose first file is `name`, or only `name` if it is
    not the first file of a set."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[2]) != 1:
        return [name]
    return [f"{match[1]}-{number:05}-of-{match[3]}.gguf" for number in range(1, int(match[3]) + 1)]


def model_name(path: Path) -> str:
    """Return a file's name without its suffix and, if it is the first file of a split set, without
    its number."""
    match = _NAME.fullmatch(path.name)
    return path.stem if match is None or int(match[2]) != 1 else match[1]


def is_later_split(name: str) -> bool:
    """Return whether `name` is a file of a split set, but not the first file."""
    match = _NAME.fullmatch(name)
    return match is not None and int(match[2]) > 1
