"""Stores in memory for embedded use and the terminal: files and approvals of one process."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final

from penstock.base.errors import NotFound
from penstock.base.ids import new_id
from penstock.store.file_record import file_record
from penstock.store.records import Decision, NewFile, StoredFile, Verdict

MAX_BYTES: Final = 1024**3
"""Total size of the files; beyond it the oldest are deleted."""
EXPIRY_S: Final = 30 * 60
APPROVAL_S: Final = 5 * 60
TIMED_OUT: Final = Verdict("deny", "Approval timed out.")


class MemoryFiles:
    """Keeps files in memory. Implements `protocols.FileStore`."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, tuple[StoredFile, bytes | None]] = OrderedDict()

    async def create(self, new: NewFile) -> StoredFile:
        stored = file_record(new, new.id or new_id("file-"), int(time.time()), EXPIRY_S)
        self._files[stored.id] = stored, new.data
        self._drop_oldest()
        return stored

    async def get(self, id: str) -> StoredFile | None:
        found = self._files.get(id)
        return None if found is None else found[0]

    async def read(self, id: str) -> bytes:
        """Return the content of a file. Raises NotFound (`file_not_found`)."""
        found = self._files.get(id)
        if found is None or found[1] is None:
            raise NotFound(f"there is no content of file {id[:80]!r}", code="file_not_found")
        return found[1]

    async def list(
        self, container: str | None = None, *, session: str | None = None
    ) -> list[StoredFile]:
        """Return the files of a container or session, newest first."""
        return [
            file
            for file, _ in reversed(self._files.values())
            if (container is None or file.container_id == container)
            and (session is None or file.session == session)
        ]

    def _drop_oldest(self) -> None:
        total = sum(len(data) for _, data in self._files.values() if data is not None)
        while total > MAX_BYTES and len(self._files) > 1:
            _, (_, data) = self._files.popitem(last=False)
            total -= len(data or b"")


class MemoryApprovals:
    """Keeps approvals in memory. Implements `protocols.ApprovalStore`; `decide` answers one."""

    def __init__(self, timeout_s: float = APPROVAL_S) -> None:
        self._timeout_s = timeout_s
        self._open: dict[str, tuple[str | None, asyncio.Future[Verdict]]] = {}
        self._remembered: set[str] = set()

    async def create(self, session: str | None = None) -> str:
        id = new_id("appr_")
        self._open[id] = session, asyncio.get_running_loop().create_future()
        return id

    async def wait(self, id: str) -> Verdict:
        """Return the decision on an approval; a denial after five minutes."""
        try:
            return await asyncio.wait_for(self._open[id][1], self._timeout_s)
        except asyncio.TimeoutError:
            return TIMED_OUT
        finally:
            self._open.pop(id, None)

    async def remembered(self, session: str) -> bool:
        return session in self._remembered

    def decide(
        self, id: str, decision: Decision, message: str | None = None, *, remember: bool = False
    ) -> bool:
        """Decide on an approval. Returns False if it is unknown or decided."""
        session, verdict = self._open.get(id, (None, None))
        if verdict is None or verdict.done():
            return False
        if remember and decision == "approve" and session is not None:
            self._remembered.add(session)
        verdict.set_result(Verdict(decision, message))
        return True
