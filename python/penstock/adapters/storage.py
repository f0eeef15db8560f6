"""Stores the private copies of the adapters that one process serves.

Each process has its own folder and holds a lock on it. The folder is deleted when the process ends:
adapters loaded at run time do not outlive the server. Folders of processes that were killed are
deleted by the next process that starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Final

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.private_copy import AdapterCopy

LOCK_NAME: Final = "lock"
PREFIX: Final = "run-"


class AdapterStorage:
    """The adapter folder of one process, under `home`/adapters. All methods block on file
    operations."""

    def __init__(self, home: Path) -> None:
        """Create and lock the folder. Raises AdapterRefused `lora_storage_unavailable` if it cannot
        be created."""
        above = home / "adapters"
        try:
            above.mkdir(parents=True, exist_ok=True)
            _clear_abandoned(above)
            self.folder, self._lock = _locked_folder(above)
        except OSError as error:
            raise AdapterRefused(
                "lora_storage_unavailable",
                "adapters cannot be stored: their folder is not writable",
            ) from error

    def keep(self, copy: AdapterCopy) -> Path:
        """Store a copy, which must have been made in `folder`, and return the folder of its
        revision. The copy is deleted if its revision is already stored. Raises AdapterRefused
        `lora_storage_unavailable`, and deletes the copy, if it cannot be stored."""
        kept = self.folder_of(copy.revision)
        if kept.exists():
            self.discard(copy)
            return kept
        try:
            copy.folder.rename(kept)
        except OSError:
            self.discard(copy)
            raise AdapterRefused(
                "lora_storage_unavailable", "the adapter's files cannot be stored"
            ) from None
        return kept

    def discard(self, copy: AdapterCopy) -> None:
        """Delete a copy that will not be stored."""
        shutil.rmtree(copy.folder, ignore_errors=True)

    def folder_of(self, revision: str) -> Path:
        """Return the folder of a revision, which may not exist."""
        return self.folder / revision

    def drop(self, revision: str) -> None:
        """Delete a revision if it is stored."""
        kept = self.folder_of(revision)
        trash = kept.with_name(f"old-{secrets.token_hex(8)}")
        with contextlib.suppress(FileNotFoundError):
            kept.rename(trash)  # atomic: the same content may be stored again at any time
            shutil.rmtree(trash, ignore_errors=True)

    def close(self) -> None:
        """Delete the folder and release its lock."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _locked_folder(above: Path) -> tuple[Path, int]:
    """Create a folder, and return the folder and the descriptor of its lock. The lock is held
    before other processes can find the folder. Raises OSError and leaves no files behind."""
    made = Path(tempfile.mkdtemp(prefix="made-", dir=above))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, made, ignore_errors=True)
        lock = os.open(made / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        undo.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = made.rename(made.with_name(PREFIX + made.name))
        undo.pop_all()
    return folder, lock


def _clear_abandoned(above: Path) -> None:
    for folder in above.glob(PREFIX + "*"):
        try:
            lock = os.open(folder / LOCK_NAME, os.O_RDWR)
        except OSError:
            continue  # another process is deleting it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # it is in use
        finally:
            os.close(lock)
