"""Compares the files of downloaded models with their recorded hashes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from penstock.models.hub.cached_models import CachedModel, files_in
from penstock.models.hub.catalogue import CATALOGUE, CatalogueEntry
from penstock.models.hub.digests import Digest, file_digest, read_hashes
from penstock.models.hub.progress import DownloadProgress, no_progress

SHA256: Final = re.compile(r"[0-9a-f]{64}")
GIT_BLOB: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class FileCheck:
    """The result for one file of a model. "unknown": no hash of it is recorded."""

    file: str
    state: Literal["ok", "broken", "missing", "unknown"]


def verify(model: CachedModel, progress: DownloadProgress = no_progress) -> list[FileCheck]:
    """Hash the files of a model, and return a result for each file that it has or should have.

    The expected hashes are those of the catalogue, of the hub at the time of the download, or the
    names of the files in the hub's own cache.
    """
    expected = _expected_in_hub_cache(model) if model.place == "hub cache" else _expected(model)
    return [_check(path, name, digest, progress) for name, (path, digest) in expected.items()]


def _check(path: Path, name: str, digest: Digest | None, progress: DownloadProgress) -> FileCheck:
    if not path.is_file():
        return FileCheck(name, "missing")
    if digest is None:
        return FileCheck(name, "unknown")
    found = _digest_of(path, digest, lambda done, total: progress(path.name, done, total))
    return FileCheck(name, "ok" if found == digest.hexdigest else "broken")


def _digest_of(path: Path, digest: Digest, progress: Callable[[int, int], None]) -> str:
    """Return the hash of a file, and leave its time of access as it was: hashing is no use of the
    model."""
    before = path.stat()
    found = file_digest(path, digest, progress)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return found


def _expected(model: CachedModel) -> dict[str, tuple[Path, Digest | None]]:
    recorded = read_hashes(model.folder)
    entry = CATALOGUE.get(model.name)
    if entry is not None:
        recorded |= dict(_catalogue_hashes(entry))
    present = [path.relative_to(model.folder).as_posix() for path in files_in(model.folder)]
    return {
        name: (model.folder / name, recorded.get(name))
        for name in dict.fromkeys([*recorded, *present])
    }


def _catalogue_hashes(entry: CatalogueEntry) -> Iterator[tuple[str, Digest]]:
    if entry.pypi is not None:
        yield entry.pypi.member.rpartition("/")[2], Digest("sha256", entry.pypi.sha256)
        for member in entry.pypi.other_files:
            yield member.path, Digest("sha256", member.sha256)
    elif entry.file is not None and entry.sha256 is not None:
        yield entry.file, Digest("sha256", entry.sha256)


def _expected_in_hub_cache(model: CachedModel) -> dict[str, tuple[Path, Digest | None]]:
    """Return the files of all snapshots. The hub's clients name a file's content by its hash, to
    which the file in the snapshot links."""
    return {
        path.relative_to(model.folder / "snapshots").as_posix(): (path, _digest_in_name(path))
        for path in sorted((model.folder / "snapshots").rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def _digest_in_name(path: Path) -> Digest | None:
    name = Path(os.readlink(path)).name if path.is_symlink() else path.name
    if SHA256.fullmatch(name):
        return Digest("sha256", name)
    return Digest("sha1", name, git_blob=True) if GIT_BLOB.fullmatch(name) else None
