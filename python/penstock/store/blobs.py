"""Bodies of files, stored outside the database in a local folder or another fsspec file system.

A body is complete or absent: it is written under a temporary name, synced, then renamed. Bodies are
written before their rows and deleted after them, so that a crash leaves at most a body without a
row, which a sweep deletes. The exception is a file that is created with a given id: its row comes
first, because the row makes the id unique. Without its body the file reads as elided.
"""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from typing import Any, BinaryIO, Final

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from penstock.base.ids import new_id
from penstock.config import SettingsError
from penstock.store.sql.faults import FULL_ERRNOS

PART_SUFFIX: Final = ".part"


class Blobs:
    """The bodies under one folder. All methods block, so call them in a thread.

    They raise OSError; `read` and `open` raise FileNotFoundError for a body that does not exist.
    """

    def __init__(self, url: str, store_id: str) -> None:
        """Create the folder. Raises OSError, and SettingsError for a URL that fsspec cannot use."""
        try:
            self.fs, root = url_to_fs(url)
        except (ValueError, ImportError):
            raise SettingsError(
                "[store] blobs must be a folder, or a URL whose fsspec file system is installed"
            ) from None
        self.root = f"{root.rstrip('/')}/{store_id}"
        self.fs.makedirs(self.root, exist_ok=True)
        self.is_local = isinstance(self.fs, LocalFileSystem)
        if self.is_local:
            os.chmod(self.root, 0o700)

    def check_writable(self) -> None:
        """Write an empty body and delete it. Raises OSError if bodies cannot be written. A full
        disk is accepted, because its bodies can be read and deleted."""
        name = new_id("try-")
        try:
            self.write(name, b"")
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
        else:
            self.delete(name)

    def begin(self, name: str) -> BlobWriter:
        """Start to write a body. It appears as `name`, such as `files/file-1`, when committed."""
        return BlobWriter(self, f"{self.root}/{name}")

    def write(self, name: str, body: bytes) -> None:
        """Store a body."""
        writer = self.begin(name)
        try:
            writer.write(body)
            writer.commit()
        except BaseException:
            writer.abort()
            raise

    def read(self, name: str) -> bytes:
        """Return a whole body."""
        body: bytes = self.fs.cat_file(f"{self.root}/{name}")
        return body

    def open(self, name: str) -> BinaryIO:
        """Open a body for reading. The caller closes it."""
        file: BinaryIO = self.fs.open(f"{self.root}/{name}", "rb")
        return file

    def delete(self, name: str) -> None:
        """Delete a body if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(f"{self.root}/{name}")

    def modification_times(self, folder: str) -> dict[str, float]:
        """Return name -> modification time (Unix seconds) of each body in a folder, unfinished
        bodies included. Bodies whose time the file system does not report are left out."""
        path = f"{self.root}/{folder}"
        if not self.fs.isdir(path):
            return {}
        entries: list[dict[str, Any]] = self.fs.ls(path, detail=True, refresh=True)
        times = {f"{folder}/{os.path.basename(e['name'])}": _modified_at(e) for e in entries}
        return {name: modified for name, modified in times.items() if modified is not None}


class BlobWriter:
    """Writes a body in pieces. Ends with `commit` or with `abort`."""

    def __init__(self, blobs: Blobs, path: str) -> None:
        self._fs, self._is_local = blobs.fs, blobs.is_local
        self._path = path
        self._part = path + new_id(".") + PART_SUFFIX
        self._folder = os.path.dirname(path)
        self._fs.makedirs(self._folder, exist_ok=True)
        self._file = self._fs.open(self._part, "wb")
        self.size_bytes = 0

    def write(self, chunk: bytes | memoryview) -> None:
        """Append to the body."""
        self._file.write(chunk)
        self.size_bytes += len(chunk)

    def commit(self) -> None:
        """Give the body its name. On return a local body is synced to the disk."""
        if self._is_local:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
        self._fs.mv(self._part, self._path)
        if self._is_local:
            _sync_folder(self._folder)

    def abort(self) -> None:
        """Delete the unfinished body. May also be called after a failed `commit`."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._fs.rm_file(self._part)


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _modified_at(entry: dict[str, Any]) -> float | None:
    """Return the modification time of a directory entry, whose key and type depend on the file
    system, or None."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = entry.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
