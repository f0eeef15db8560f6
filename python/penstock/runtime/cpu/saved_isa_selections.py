"""Saves the ISA selections that were measured on this machine, in one file per processor, build and
set of kernel shapes.

A selection changes the bits of results, so it is made only once: the first process to write the
file wins, and other processes use that file. A file that cannot be read, or is for another
processor, build or set of shapes, counts as absent and is replaced.
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
SCHEMA: Final = 2
_CPUINFO: Final = Path("/proc/cpuinfo")
_PROCESSOR: Final = (
    "model name", "vendor_id", "cpu family", "model", "stepping",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision",
)  # fmt: skip

log = logging.getLogger(__name__)


class IsaSelectionKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key of a saved selection.

    `processor`: see `processor_name`.
    `levels`: ISAs that both the processor and the build support, narrowest first.
    `build`: version and digest of the kernels; see `build_name`.
    `shapes`: lines of text that describe the kernel shapes of the model.
    """

    processor: str
    levels: tuple[str, ...]
    build: str
    shapes: tuple[str, ...]

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()
        return f"{digest[:32]}.json"


class SavedIsaSelection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one file.

    `model_id`: the model for which the selection was measured.
    `levels`: the selection.
    `microseconds`: measured times by kernel, rows, arithmetic and ISA.
    """

    schema: int
    key: IsaSelectionKey
    model_id: str
    levels: IsaSelection
    microseconds: dict[str, float] = {}


def save_selection(home: Path, made: SavedIsaSelection) -> SavedIsaSelection:
    """Write a selection unless another process has written one for the same key. Return the
    selection that is now valid. If no file can be written, log a warning and return `made`."""
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
    """Return the selection saved for `key`, or None."""
    saved = _read(home / FOLDER / key.file_name)
    return saved if saved is not None and saved.key == key else None


def all_saved(home: Path) -> list[SavedIsaSelection]:
    """Return all selections saved under `home` whose files can be read."""
    try:
        paths = sorted((home / FOLDER).glob("*.json"))
    except OSError:
        return []
    return [saved for saved in map(_read, paths) if saved is not None]


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """Return the name of the first processor's model: "AMD EPYC; AuthenticAMD; 25; 17; 1"."""
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
    """Move a complete file to its final name in one step, unless a valid file has that name
    already. Return the selection that is now valid."""
    try:
        os.link(written, final)
    except FileExistsError:
        there = _read(final)
        if there is not None and there.key == made.key:
            return there
        os.replace(written, final)
    except OSError:  # the file system has no hard links
        os.replace(written, final)
    return made


def _read(path: Path) -> SavedIsaSelection | None:
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=SavedIsaSelection)
    except (OSError, msgspec.DecodeError):
        return None
    return saved if saved.schema == SCHEMA and _is_valid(saved) else None


def _is_valid(saved: SavedIsaSelection) -> bool:
    """Return whether the processor supports every ISA of a selection and its row ranges ascend."""
    isas = saved.levels
    ranges = (*isas.linear, *isas.experts)
    named = {isas.products, isas.attention, isas.other, *(one.level for one in ranges)}
    if isas.prompts:
        named.add(isas.prompts)
    return named <= set(saved.key.levels) and all(
        _ascend([one.most_rows for one in each]) for each in (isas.linear, isas.experts)
    )


def _ascend(bounds: Sequence[int | None]) -> bool:
    """Return whether the bounds ascend from at least 1, and the last one is None."""
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
