"""ISA selections that were measured on this machine: one file per processor, build and set of
shapes.

A selection changes the bits of results, so it is made once: the first writer wins, and the others
use its file. A file that cannot be read, or is for another processor, build or set of shapes,
counts as absent and is replaced.
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
    """The key of a selection. `levels`: ISAs that the processor and the build have, narrowest
    first; `build`: version and digest of the kernels; `shapes`: one line per fact of the model."""

    processor: str
    levels: tuple[str, ...]
    build: str
    shapes: tuple[str, ...]

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()
        return f"{digest[:32]}.json"


class SavedIsaSelection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one file. `model_id`: the first model that the selection was made for;
    `microseconds`: measured times by work, rows and ISA."""

    schema: int
    key: IsaSelectionKey
    model_id: str
    levels: IsaSelection
    microseconds: dict[str, float] = {}


def save_selection(home: Path, made: SavedIsaSelection) -> SavedIsaSelection:
    """Write a selection unless one has been written meanwhile. Return the one that is now valid: if
    no file can be written, `made`, with a warning."""
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
            "%s cannot be written (%s): the next start measures the processor again and may"
            " choose other instruction sets",
            final,
            error.strerror,
        )
        return made


def load_selection(home: Path, key: IsaSelectionKey) -> SavedIsaSelection | None:
    """Return the selection for `key`, if there is one."""
    saved = _read(home / FOLDER / key.file_name)
    return saved if saved is not None and saved.key == key else None


def all_saved(home: Path) -> list[SavedIsaSelection]:
    """Return every readable selection."""
    try:
        paths = sorted((home / FOLDER).glob("*.json"))
    except OSError:
        return []
    return [saved for saved in map(_read, paths) if saved is not None]


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """Return the kind of the first processor: "AMD EPYC; AuthenticAMD; 25; 17; 1"."""
    return "; ".join(_values(cpuinfo)) or "unknown"


def build_name(kernels: Path) -> str:
    """Return the version and a digest of the extension module `kernels`."""
    digest = hashlib.sha256(kernels.read_bytes()).hexdigest()
    return f"{__version__}-{digest[:16]}"


def _write(folder: Path, made: SavedIsaSelection) -> Path:
    handle, name = tempfile.mkstemp(suffix=".new", dir=folder)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(made)))
    return Path(name)


def _place(written: Path, final: Path, made: SavedIsaSelection) -> SavedIsaSelection:
    """Publish a complete file under its name in one step. An earlier readable one stays."""
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
        saved = msgspec.json.decode(path.read_bytes(), type=SavedIsaSelection)
    except (OSError, msgspec.DecodeError):
        return None
    return saved if saved.schema == SCHEMA and _is_valid(saved) else None


def _is_valid(saved: SavedIsaSelection) -> bool:
    """Return whether every ISA in use is one of the processor's and the row ranges ascend."""
    isas = saved.levels
    ranges = (*isas.linear, *isas.experts)
    named = {isas.products, isas.attention, isas.other, *(one.level for one in ranges)}
    return named <= set(saved.key.levels) and all(
        _ascend([one.most_rows for one in each]) for each in (isas.linear, isas.experts)
    )


def _ascend(bounds: Sequence[int | None]) -> bool:
    """Return whether bounds ascend from at least 1 and the last is None."""
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
