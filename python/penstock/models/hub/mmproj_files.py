"""Finds the `mmproj` file of a GGUF model: the file with its towers and projector."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles, path_at

NO_MMPROJ: Final = "off"
"""The value of the option `--mmproj` with which a model takes text only."""

_PREFERRED: Final = ("f16", "bf16", "f32", "q8_0", "")
_TYPE: Final = re.compile(r"[-_.]?(bf16|f16|f32|fp16|fp32|q8_0|q\d\w*)(?=[-_.]|$)", re.IGNORECASE)


def is_mmproj(name: str) -> bool:
    """Return whether a file name is that of an `mmproj` file."""
    return name.endswith(".gguf") and "mmproj" in name.lower()


def choose_mmproj(names: Iterable[str]) -> str | None:
    """Return the `mmproj` file among the file `names`. If there are several that differ only in the
    type of their tensors, it is the one in float16, bfloat16, float32 or Q8_0, in this order; if
    they differ otherwise, there is none."""
    found = [name for name in names if is_mmproj(name)]
    if len({_TYPE.sub("", name.removesuffix(".gguf")).lower() for name in found}) != 1:
        return None
    return min(found, key=_preference)


def with_mmproj(files: ModelFiles, named: str | None) -> ModelFiles:
    """Return `files` with the `mmproj` file that the operator named: a path, "off" for none, or
    None for the one that was found beside the model. Raises ModelError if the file does not
    exist."""
    if named is None:
        return files
    if named == NO_MMPROJ:
        return replace(files, mmproj=None)
    path = path_at(named)
    if path is None or not path.is_file():
        raise ModelError(f"mmproj: {named}: no such file")
    return replace(files, mmproj=path)


def mmproj_beside(path: Path) -> Path | None:
    """Return the `mmproj` file in the folder of a GGUF model, or None."""
    name = choose_mmproj(_names(path.parent))
    return None if name is None or name == path.name else path.parent / name


def _names(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.gguf")):
        yield path.name


def _preference(name: str) -> tuple[int, str]:
    match = _TYPE.search(name.removesuffix(".gguf"))
    kind = "" if match is None else match[1].lower().replace("fp", "f")
    return _PREFERRED.index(kind) if kind in _PREFERRED else len(_PREFERRED), name
