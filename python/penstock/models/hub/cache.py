"""The cache of downloaded models: `home/models/<name>/`, complete or absent.

A model is downloaded into `<name>.partial`, which a second attempt resumes, and renamed when all
its files have been checked. One process at a time holds the lock of a name; the others wait and
then find the model in the cache.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.base.errors import ModelError

log = logging.getLogger(__name__)


def cached_folder(home: Path, name: str) -> Path | None:
    """Return the complete folder of `name`, or None if it has not been downloaded."""
    folder = _root(home) / name
    return folder if folder.is_dir() else None


def fetch_into_cache(home: Path, name: str, fetch: Callable[[Path], None]) -> Path:
    """Return the folder of `name`, filled by `fetch` unless it exists.

    `fetch` gets the partial folder, which may hold files of an interrupted attempt, and must leave
    only checked files in it. Empty files and folders of a failed attempt are deleted. Raises
    ModelError if the cache cannot be written.
    """
    root = _root(home)
    final, partial = root / name, root / f"{name}.partial"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root, name):
            if final.is_dir():
                return final
            partial.mkdir(exist_ok=True)
            try:
                fetch(partial)
            except BaseException:
                _drop_empty(partial)
                raise
            for folder in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
                _sync_folder(folder)
            partial.rename(final)
            _sync_folder(root)
    except OSError as error:
        cause = error.strerror or error
        raise ModelError(
            f"{final}: cannot be written: {cause}; set PENSTOCK_HOME to a writable folder with"
            " enough space"
        ) from None
    return final


def _drop_empty(folder: Path) -> None:
    """Remove empty files and folders in a folder, and the folder itself if it is empty then."""
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):  # contents before folders
        if path.is_dir():
            with suppress(OSError):  # not empty
                path.rmdir()
        elif path.stat().st_size == 0:
            path.unlink()


def _root(home: Path) -> Path:
    return home / "models"


@contextmanager
def _locked(root: Path, name: str) -> Iterator[None]:
    """Hold the lock of a name. The kernel releases it when the process ends for any reason."""
    with (root / f"{name}.lock").open("ab") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("%s: another process is downloading it; waiting", name)
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield


def _sync_folder(folder: Path) -> None:
    """Flush a folder, so that a power loss after the rename loses no file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
