"""Bodies (contents) of files, stored outside the database in a local folder or another fsspec file
system.

A body is complete or absent: it is written under a temporary name, synced, then renamed. A body is
written before its database row and deleted after the row, so that a crash leaves at most a body
without a row, which a sweep deletes. A file that is created with a given id is the exception: its
row is inserted first, because the row makes the id unique. If its body is missing, the file reads
as elided.
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
    """Reads and writes the bodies under one folder. All methods block, so call them in a thread.

    The methods raise OSError. `read` and `open` raise FileNotFoundError if the body does not exist.

    `url`: the folder, as a path or an fsspec URL.
    `store_id`: the name of the subfolder that belongs to this store.
    """

    def __init__(self, url: str, store_id: str) -> None:
        """Create the folder of the bodies. Raises OSError, and SettingsError for a URL that fsspec
        cannot use."""
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
        """Write an empty body and delete it. Raises OSError if the folder is not writable, but not
        if the disk is full, because existing bodies can still be read and deleted."""
        name = new_id("try-")
        try:
            self.write(name, b"")
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
        else:
            self.delete(name)

    def begin(self, name: str) -> BlobWriter:
        """Start to write a body. After `commit` it is stored as `name`, such as `files/file-1`."""
        return BlobWriter(self, f"{self.root}/{name}")

    def write(self, name: str, body: bytes) -> None:
        """Store `body` under `name`."""
        writer = self.begin(name)
        try:
            writer.write(body)
            writer.commit()
        except BaseException:
            writer.abort()
            raise

    def read(self, name: str) -> bytes:
        """Return the whole body `name`."""
        body: bytes = self.fs.cat_file(f"{self.root}/{name}")
        return body

    def open(self, name: str) -> BinaryIO:
        """Open the body `name` for reading. The caller closes it."""
        file: BinaryIO = self.fs.open(f"{self.root}/{name}", "rb")
        return file

    def delete(self, name: str) -> None:
        """Delete the body `name` if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(f"{self.root}/{name}")

    def modification_times(self, folder: str) -> dict[str, float]:
        """Return name -> modification time (Unix seconds) of each body in a folder, including
        unfinished bodies. Bodies for which the file system reports no time are omitted."""
        path = f"{self.root}/{folder}"
        if not self.fs.isdir(path):
            return {}
        entries: list[dict[str, Any]] = self.fs.ls(path, detail=True, refresh=True)
        times = {f"{folder}/{os.path.basename(e['name'])}": _modified_at(e) for e in entries}
        return {name: modified for name, modified in times.items() if modified is not None}


class BlobWriter:
    """Writes one body in pieces. The caller must end with `commit` or `abort`."""

    def __init__(self, blobs: Blobs, path: str) -> None:
        self._fs, self._is_local = blobs.fs, blobs.is_local
        self._path = path
        self._part = path + new_id(".") + PART_SUFFIX
        self._folder = os.path.dirname(path)
        self._fs.makedirs(self._folder, exist_ok=True)
        self._file = self._fs.open(self._part, "wb")
        self.size_bytes = 0

    def write(self, chunk: bytes | memoryview) -> None:
        """Append `chunk` to the body."""
        self._file.write(chunk)
        self.size_bytes += len(chunk)

    def commit(self) -> None:
        """Rename the finished body to its final name. A local body is on the disk when this
        returns."""
        if self._is_local:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
        self._fs.mv(self._part, self._path)
        if self._is_local:
            _sync_folder(self._folder)

    def abort(self) -> None:
        """Delete the unfinished body. May be called after a failed `commit`."""
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
    """Return the modification time in a directory entry, or None if it has none. The key and the
    type of the time depend on the file system."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = entry.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
