"""The levels that were once chosen on this machine, one file for each processor, build and set of
shapes.

A choice changes bits, so it is made once: whoever writes first wins, and the others take what is
there. A file that cannot be read, or is not for the same processor, build and shapes, counts as
absent and is replaced.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock import __version__
from penstock.kernels.isa.instruction_sets import IsaSelection

FOLDER: Final = "cpu_levels"
SCHEMA: Final = 1
_CPUINFO: Final = Path("/proc/cpuinfo")
_PROCESSOR: Final = (
    "model name", "vendor_id", "cpu family", "model", "stepping",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision",
)  # fmt: skip

log = logging.getLogger(__name__)


class IsaSelectionKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a choice is for. `levels`: those that the processor and the build have, narrowest first;
    `build`: version and digest of the kernels; `shapes`: one line for each fact of the model."""

    processor: str
    levels: tuple[str, ...]
    build: str
    shapes: tuple[str, ...]

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()
        return f"{digest[:32]}.json"


class SavedIsaSelection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file. `model_id`: the first model that the choice was made for; `microseconds`: what was
    measured, by work, rows and level."""

    schema: int
    key: IsaSelectionKey
    model_id: str
    levels: IsaSelection
    microseconds: dict[str, float] = {}


def keep(home: Path, made: SavedIsaSelection) -> SavedIsaSelection:
    """Write a choice, unless there is one by now; returns the one that counts from now on. Where
    nothing can be written, that is `made`, with a warning."""
    final = home / FOLDER / made.key.file_name
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        written = _write(final.parent, made)
        try:
            return _place(written, final, made)
        finally:
            written.unlink(missing_ok=True)
    except OSError as error:
        log.warning(
            "%s cannot be written (%s): the next start measures the processor again, and may"
            " choose otherwise",
            final,
            error.strerror,
        )
        return made


def recall(home: Path, key: IsaSelectionKey) -> SavedIsaSelection | None:
    """The choice for `key`, if there is one."""
    kept = _read(home / FOLDER / key.file_name)
    return kept if kept is not None and kept.key == key else None


def all_saved(home: Path) -> list[SavedIsaSelection]:
    """Every readable choice."""
    try:
        paths = sorted((home / FOLDER).glob("*.json"))
    except OSError:
        return []
    return [kept for kept in map(_read, paths) if kept is not None]


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """Names the kind of the first processor: "AMD EPYC; AuthenticAMD; 25; 17; 1"."""
    return "; ".join(_values(cpuinfo)) or "unknown"


def build_name(kernels: Path) -> str:
    """The version, and a digest of the extension module `kernels`."""
    digest = hashlib.sha256(kernels.read_bytes()).hexdigest()
    return f"{__version__}-{digest[:16]}"


def _write(folder: Path, made: SavedIsaSelection) -> Path:
    handle, name = tempfile.mkstemp(suffix=".new", dir=folder)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(made)))
    return Path(name)


def _place(written: Path, final: Path, made: SavedIsaSelection) -> SavedIsaSelection:
    """Give a whole file its name in one step; an earlier one stays if it can be read."""
    try:
        os.link(written, final)
    except FileExistsError:
        there = _read(final)
        if there is not None and there.key == made.key:
            return there
        os.replace(written, final)
    except OSError:  # a file system without hard links
        os.replace(written, final)
    return made


def _read(path: Path) -> SavedIsaSelection | None:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=SavedIsaSelection)
    except (OSError, msgspec.DecodeError):
        return None
    return kept if kept.schema == SCHEMA and _fits(kept) else None


def _fits(kept: SavedIsaSelection) -> bool:
    """Whether every level that is named is one of the processor's."""
    levels = kept.levels
    ranges = (*levels.linear, *levels.experts)
    named = {levels.products, levels.attention, levels.other, *(one.level for one in ranges)}
    return named <= set(kept.key.levels) and all(
        _ascend([one.most_rows for one in each]) for each in (levels.linear, levels.experts)
    )


def _ascend(bounds: Sequence[int | None]) -> bool:
    """Whether they ascend from 1, and the last is None."""
    *finite, last = bounds or [None]
    known = [bound for bound in finite if bound is not None]
    ascends = known == sorted(set(known)) and min(known, default=1) > 0
    return last is None and len(known) == len(finite) and ascends


def _values(cpuinfo: Path) -> Iterator[str]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    yield from (found[name] for name in _PROCESSOR if name in found)
