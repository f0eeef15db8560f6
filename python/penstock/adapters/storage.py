"""The private copies of the adapters that one process serves, and their end.

Each process has a folder of its own, with a lock on it for as long as it lives; folders of those
that died are cleared away by the next one. It goes with the process: adapters that were loaded at
run time do not outlive the server.
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
    """A folder under `home`/adapters. All methods may block for as long as files take."""

    def __init__(self, home: Path) -> None:
        """Raises AdapterRefused `lora_storage_unavailable`."""
        above = home / "adapters"
        try:
            above.mkdir(parents=True, exist_ok=True)
            _clear_abandoned(above)
            self.folder, self._lock = _locked_folder(above)
        except OSError as error:
            raise AdapterRefused(
                "lora_storage_unavailable", "adapters cannot be kept: their folder is not writable"
            ) from error

    def put(self, snapshot: AdapterCopy) -> Path:
        """Keep a snapshot that was taken in `folder`; where its content is kept already, or it
        cannot be kept, the copy goes. Returns where it is. Raises AdapterRefused
        `lora_storage_unavailable`."""
        place = self.place(snapshot.revision)
        if place.exists():
            self.discard(snapshot)
            return place
        try:
            snapshot.folder.rename(place)
        except OSError:
            self.discard(snapshot)
            raise AdapterRefused(
                "lora_storage_unavailable", "the adapter's files cannot be kept"
            ) from None
        return place

    def discard(self, snapshot: AdapterCopy) -> None:
        """Delete a snapshot that is not to be kept."""
        shutil.rmtree(snapshot.folder, ignore_errors=True)

    def place(self, revision: str) -> Path:
        """Where a revision is kept."""
        return self.folder / revision

    def drop(self, revision: str) -> None:
        """Delete a revision, if it is there."""
        place = self.place(revision)
        trash = place.with_name(f"old-{secrets.token_hex(8)}")
        with contextlib.suppress(FileNotFoundError):
            place.rename(trash)  # at once, so that the same content may be put there again
            shutil.rmtree(trash, ignore_errors=True)

    def close(self) -> None:
        """Delete all."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _locked_folder(above: Path) -> tuple[Path, int]:
    """A new folder and the descriptor of its lock, which is held when the others see it. Raises
    OSError; then nothing is left."""
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
            continue  # it goes already
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # it is in use
        finally:
            os.close(lock)
