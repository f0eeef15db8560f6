"""The cache of downloaded models: `home/models/<name>/`, which is either complete or absent.

A model is downloaded into `<name>.partial`, where an interrupted download is resumed, and renamed
after all files have been checked. Each name has a lock that one process holds at a time; other
processes wait and then find the model in the cache.
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
    """Return the folder of the model `name`, or None if it has not been downloaded completely."""
    folder = _root(home) / name
    return folder if folder.is_dir() else None


def fetch_into_cache(home: Path, name: str, fetch: Callable[[Path], None]) -> Path:
    """Return the folder of the model `name`, downloading it with `fetch` if it is not in the cache.

    `fetch` is called with the partial folder, which may contain files of an interrupted download,
    and must leave only checked files in it. If it fails, empty files and folders are deleted.
    Raises ModelError if the cache cannot be written.
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
    """Delete all empty files and folders in `folder`, and `folder` itself if nothing remains in
    it."""
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
    """Hold the lock of the model `name` in a `with` block, waiting if another process holds it. The
    kernel releases the lock when the process ends for any reason."""
    with (root / f"{name}.lock").open("ab") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("%s: another process is downloading it; waiting", name)
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a power failure after the rename loses no file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
