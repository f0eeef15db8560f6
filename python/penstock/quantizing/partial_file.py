"""A file that gets its name only when it is complete, and that an interrupted run resumes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from penstock.base.errors import ModelError

_SPARE_BYTES: Final = 1 << 20
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class PartialFile:
    """Context manager that writes `path` through `path`.partial, in pieces of known places.

    A journal beside it, `path`.progress, has the digest of the plan and the number of pieces whose
    data are on disk. Opening it again with the same digest continues after them. An exception
    keeps both files, except when the disk is full: then nothing is left.
    """

    def __init__(self, path: Path, size_bytes: int, digest: str) -> None:
        """Reserve `size_bytes` on the disk. Raises ModelError if `path` exists, another process
        writes it, or the disk has too little space."""
        self.path = path
        self._partial = path.with_name(f"{path.name}.partial")
        self._journal = path.with_name(f"{path.name}.progress")
        self._digest = digest
        refuse_to_overwrite(path)
        with disk_errors(path):
            self._file = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._lock()
                self.finished = self._read_journal()
                self._reserve(size_bytes)
            except BaseException:
                os.close(self._file)
                raise

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError) and error.errno in _FULL:
            self._remove()
        os.close(self._file)
        if isinstance(error, OSError):
            raise ModelError(f"{self.path}: {error.strerror or error}") from None

    def write(self, offset: int, data: Any) -> None:
        """Write bytes at `offset`."""
        view = memoryview(data).cast("B")
        while view:
            count = os.pwrite(self._file, view, offset)
            view, offset = view[count:], offset + count

    def finish_piece(self) -> None:
        """Put what was written on the disk, and record that one more piece is finished."""
        os.fdatasync(self._file)
        self.finished += 1
        self._write_journal()

    def publish(self) -> None:
        """Give the complete file its name. Raises ModelError if the name is taken by now."""
        os.fsync(self._file)
        try:
            os.link(self._partial, self.path)
        except FileExistsError:
            raise _exists(self.path) from None
        except OSError:  # a file system without links
            refuse_to_overwrite(self.path)
            os.rename(self._partial, self.path)
        self._remove()
        _sync_folder(self.path.parent)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelError(f"{self.path}: another process is writing it") from None

    def _read_journal(self) -> int:
        """Return the number of finished pieces, 0 if the journal is of another plan."""
        try:
            journal = json.loads(self._journal.read_bytes())
            same = journal["digest"] == self._digest
            return int(journal["finished"]) if same else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _write_journal(self) -> None:
        written = self._journal.with_name(f"{self._journal.name}.new")
        written.write_text(json.dumps({"digest": self._digest, "finished": self.finished}))
        os.replace(written, self._journal)

    def _reserve(self, size_bytes: int) -> None:
        if self.finished == 0:
            os.ftruncate(self._file, 0)
        missing = size_bytes - os.fstat(self._file).st_blocks * 512
        free = shutil.disk_usage(self.path.parent).free
        if missing + _SPARE_BYTES > free:
            if self.finished == 0:
                self._remove()
            raise ModelError(
                f"{self.path}: {missing:,} more bytes are needed, the disk has {free:,} free"
            )
        try:
            os.posix_fallocate(self._file, 0, size_bytes)
        except OSError as error:
            if error.errno in _FULL:
                self._remove()
                raise
            os.ftruncate(self._file, size_bytes)  # a file system that cannot reserve

    def _remove(self) -> None:
        for path in (self._partial, self._journal):
            path.unlink(missing_ok=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a ModelError naming `path`."""
    try:
        yield
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None


def refuse_to_overwrite(path: Path) -> None:
    """Raise ModelError if `path` exists."""
    if os.path.lexists(path):
        raise _exists(path)


def _exists(path: Path) -> ModelError:
    return ModelError(f"{path}: already exists; name another output, or remove it first")


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def stamp(path: Path) -> str:
    """Return a text that changes when a file, or a file of a folder, changes."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.resolve(), file.stat()) for file in files]
    return " ".join(f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats)
