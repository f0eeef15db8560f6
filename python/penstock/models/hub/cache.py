"""The folder of fetched models: `home/models/<name>/`, complete or not there.

A model is fetched into `<name>.partial`, which a second try resumes, and renamed when every file
in it has been checked. One process at a time holds the lock of a name; the others wait and then
find the model there.
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
    """The complete folder of `name`; None where it has not been fetched."""
    folder = _root(home) / name
    return folder if folder.is_dir() else None


def fetch_into_cache(home: Path, name: str, fetch: Callable[[Path], None]) -> Path:
    """The folder of `name`, filled by `fetch` unless it is there already.

    `fetch` gets the partial folder, with what an interrupted try left in it, and leaves in it
    checked files only; of a try that brought nothing, nothing is left. Raises ModelError where the
    cache cannot be written.
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
            f"{final}: cannot be written: {cause}; PENSTOCK_HOME can name a folder with room that"
            " may be written"
        ) from None
    return final


def _drop_empty(folder: Path) -> None:
    """Remove what is empty in a folder, and itself if it is."""
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):  # what is inside comes first
        if path.is_dir():
            with suppress(OSError):  # not empty
                path.rmdir()
        elif path.stat().st_size == 0:
            path.unlink()


def _root(home: Path) -> Path:
    return home / "models"


@contextmanager
def _locked(root: Path, name: str) -> Iterator[None]:
    """Hold the lock of a name. The system drops it with the process, however it ends."""
    with (root / f"{name}.lock").open("ab") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("%s: another process is fetching it; waiting for that", name)
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield


def _sync_folder(folder: Path) -> None:
    """After a power loss a renamed folder must not hold less than before."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
