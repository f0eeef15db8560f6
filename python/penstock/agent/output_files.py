"""Stores the files that server tools make, and shows them to the client and to the model."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from penstock.agent.attachments import text_of
from penstock.agent.protocols import FileStore
from penstock.agent.tools.tool import OutputFile
from penstock.base.errors import ServiceError
from penstock.base.ids import new_id
from penstock.dialog import ProducedFile, RequestedFile
from penstock.store.records import FileSource, NewFile, StoredFile

log = logging.getLogger(__name__)

MAX_INLINE_BYTES: Final = 8 * 1024 * 1024
"""Larger files are not part of answers and events."""
MAX_PREVIEW_BYTES: Final = 1024
PURPOSE: Final = "agent_output"
NOT_PRODUCED: Final = "not_produced"
NOT_STORED: Final = "not_stored"
RUN_ID_CHARS: Final = 12


class OutputFiles:
    """The output files of one run.

    - `session`, `container`: ids under which the files are stored.
    - `turn`: number of the conversation's turn, from 0.
    - `requested`: the files that the client requires.
    - `stored`: called with the ids of files that the container made, once they are stored.
    """

    def __init__(
        self,
        store: FileStore,
        session: str,
        container: str,
        turn: int,
        requested: tuple[RequestedFile, ...],
        stored: Callable[[Iterable[str]], None],
    ) -> None:
        self._store = store
        self._session = session
        self._container = container
        self._turn = turn
        self._requested = requested
        self._stored = stored
        self._run = new_id("")[:RUN_ID_CHARS]
        self._num_files: dict[int, int] = {}
        self._names: set[str] = set()
        self._known: dict[tuple[str, bytes], ProducedFile] = {}

    async def store(
        self, files: Iterable[OutputFile], tool: str, round: int
    ) -> tuple[ProducedFile, ...]:
        """Store the files of one call. A file that cannot be stored becomes a placeholder. A file
        with the name and content of an earlier one of the run is that file again."""
        produced = tuple([await self._create(file, tool, round) for file in files])
        self._stored(file.id for file in produced)
        return produced

    async def missing(self, round: int) -> tuple[ProducedFile, ...]:
        """Store placeholders for the requested files that no tool has made."""
        placeholders = [
            OutputFile(
                file.name,
                None,
                format=file.format,
                code=NOT_PRODUCED,
                message="no tool call made this file",
            )
            for file in self._requested
            if file.name not in self._names
        ]
        return await self.store(placeholders, "", round)

    async def _create(self, file: OutputFile, tool: str, round: int) -> ProducedFile:
        key = file.name, hashlib.sha256(file.data or b"").digest()
        if file.data is not None and key in self._known:
            return self._known[key]
        index = self._num_files.get(round, 0)
        self._num_files[round] = index + 1
        if file.code is None:
            self._names.add(file.name)
        new = NewFile(
            id=f"file_{self._run}_r{round}_{index}",
            name=file.name.replace("/", "_"),
            data=file.data,
            size_bytes=file.size_bytes,
            format=file.format or self._requested_format(file.name),
            source=FileSource(tool, round, self._turn),
            purpose=PURPOSE,
            container_id=self._container,
            session=self._session,
            code=file.code,
            message=file.message,
        )
        try:
            stored = await self._store.create(new)
        except ServiceError as error:
            log.warning("an output file could not be stored: %s", error.message)
            return _unstored(new, self._container, error.message)
        produced = _produced(stored, file.data, self._container)
        if file.data is not None:
            self._known[key] = produced
        return produced

    def _requested_format(self, name: str) -> str | None:
        return next((file.format for file in self._requested if file.name == name), None)


def summaries(files: Sequence[ProducedFile]) -> list[dict[str, Any]]:
    """Return the descriptions of files that are added to the result of a call, for the model."""
    return [_summary(file) for file in files]


def _summary(file: ProducedFile) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": file.id,
        "name": file.name,
        "format": file.format,
        "bytes": file.size_bytes,
    }
    if file.code is not None:
        return shown | {"error": file.message or file.code}
    if file.text is not None and file.size_bytes <= MAX_PREVIEW_BYTES:
        return shown | {"text": file.text}
    if file.preview is not None:
        return shown | {"preview": file.preview, "truncated": True}
    return shown


def _produced(stored: StoredFile, data: bytes | None, container: str) -> ProducedFile:
    text, preview = None, None
    inline = data is not None and len(data) <= MAX_INLINE_BYTES
    if data is not None:
        head = data[:MAX_PREVIEW_BYTES]
        if text_of(data) is not None:
            preview = head.decode("utf-8", "ignore")
            text = _decoded(data) if inline else None
    return ProducedFile(
        id=stored.id,
        name=stored.name,
        format=stored.format,
        mime_type=stored.mime_type,
        size_bytes=stored.size_bytes,
        created_at=stored.created_at,
        tool=stored.source.tool,
        round=stored.source.round,
        turn=stored.source.turn,
        container_id=container,
        text=text,
        data=data if inline and text is None else None,
        preview=preview,
        code=stored.code,
        message=stored.message,
    )


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _unstored(new: NewFile, container: str, message: str) -> ProducedFile:
    assert new.id is not None
    return ProducedFile(
        id=new.id,
        name=new.name,
        format=new.format or PurePosixPath(new.name).suffix.lstrip(".") or "bin",
        mime_type="application/octet-stream",
        size_bytes=0,
        created_at=0,
        tool=new.source.tool,
        round=new.source.round,
        turn=new.source.turn,
        container_id=container,
        code=NOT_STORED,
        message=message,
    )
