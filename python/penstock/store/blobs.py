"""Bodies of files, outside the database: a local folder, or whatever else fsspec reaches.

A body is complete or absent: it is written under another name, synced, then renamed. Bodies are
written before the rows that name them, and deleted after: what a crash leaves behind is a body
without a row, which a sweep finds. A file that is brought along with its id is the exception: its
row is what makes it the only one, and without a body it reads as one that is not kept.
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
    """The bodies under one folder. All methods block: call them in a thread.

    They raise OSError; `read` and `open` raise FileNotFoundError for a body that is gone.
    """

    def __init__(self, url: str, store_id: str) -> None:
        """Make the folder. Raises SettingsError for a URL that fsspec cannot use here, OSError."""
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

    def try_to_write(self) -> None:
        """Write an empty body and delete it. Raises OSError where bodies cannot be written; a full
        disk is no such place, since what it holds can be read and deleted."""
        name = new_id("try-")
        try:
            self.write(name, b"")
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
        else:
            self.delete(name)

    def begin(self, name: str) -> BlobWriter:
        """Start a body that will be `name`, such as `files/file-1`, once it is committed."""
        return BlobWriter(self, f"{self.root}/{name}")

    def write(self, name: str, body: bytes) -> None:
        """Keep a body."""
        writer = self.begin(name)
        try:
            writer.write(body)
            writer.commit()
        except BaseException:
            writer.abort()
            raise

    def read(self, name: str) -> bytes:
        """A whole body."""
        body: bytes = self.fs.cat_file(f"{self.root}/{name}")
        return body

    def open(self, name: str) -> BinaryIO:
        """A body, to be read in pieces and closed."""
        file: BinaryIO = self.fs.open(f"{self.root}/{name}", "rb")
        return file

    def delete(self, name: str) -> None:
        """Forget a body, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(f"{self.root}/{name}")

    def ages(self, folder: str) -> dict[str, float]:
        """When each body in a folder, unfinished ones too, was changed (Unix seconds). What the
        file system does not tell the age of is left out."""
        path = f"{self.root}/{folder}"
        if not self.fs.isdir(path):
            return {}
        entries: list[dict[str, Any]] = self.fs.ls(path, detail=True, refresh=True)
        ages = {f"{folder}/{os.path.basename(e['name'])}": _changed_at(e) for e in entries}
        return {name: changed for name, changed in ages.items() if changed is not None}


class BlobWriter:
    """A body that is being written. Ends with `commit` or with `abort`."""

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
        """On return the body is on the disk, under its name."""
        if self._is_local:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
        self._fs.mv(self._part, self._path)
        if self._is_local:
            _sync_folder(self._folder)

    def abort(self) -> None:
        """Leave nothing behind. Also after a `commit` that failed."""
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


def _changed_at(entry: dict[str, Any]) -> float | None:
    """File systems name it differently: local ones `mtime`, object stores a datetime."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = entry.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
