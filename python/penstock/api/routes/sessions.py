"""Endpoints of `/v1/sessions/{session_id}`: export, import, delete."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from penstock.api.codecs.sessions import ImportedFile, decode_session, encode_message
from penstock.api.observability.request_record import record_of_request
from penstock.api.routes.answers import send_empty, send_value
from penstock.api.routes.request_reader import run_decoder
from penstock.api.services import Services
from penstock.base.errors import NotFound, ServiceError
from penstock.store.client_names import check_session_id
from penstock.store.errors import shorten
from penstock.store.records import FileSource, NewFile, StoredFile

# Larger files are exported without their content; clients can get it from
# /v1/files/{file_id}/content.
INLINE_BYTES: Final = 8 * 1024 * 1024
# Limit on the content of all files in one export, so that the export can be imported again.
EXPORT_BYTES: Final = 24 * 1024 * 1024
PREVIEW_CHARS: Final = 1024


class ExportSession:
    """GET: returns a session's messages and files. Raises NotFound."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id: str = scope["path_params"]["session_id"]
        store = self._services.store
        session = await store.sessions.get(id)
        if session is None:
            raise NotFound(f"Session '{shorten(id)}' not found", code="session_not_found")
        messages = [m for message in session.messages for m in encode_message(message)]
        files = []
        remaining = EXPORT_BYTES
        for file in await store.files.list(session=id):
            body = (
                await self._body(file) if file.size_bytes <= min(INLINE_BYTES, remaining) else None
            )
            remaining -= 0 if body is None else len(body)
            files.append(_file_object(file, body))
        await send_value({"messages": messages, "files": files}, send)

    async def _body(self, file: StoredFile) -> bytes | None:
        try:
            return await self._services.store.files.read(file.id)
        except ServiceError as error:
            if error.status >= 500:
                raise
            return None


class ImportSession:
    """PUT: stores a session, replacing any session with the same id. If a run of the replaced
    session is in progress, its answer is not saved."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of_request()
        id = check_session_id(scope["path_params"]["session_id"])
        body = await self._services.bodies.read(record, receive)
        session = await run_decoder(decode_session, body)
        store = self._services.store
        for file in session.files:
            if await store.files.get(file.id) is None:
                await store.files.create(_new_file(file, id))
        await store.sessions.put(id, session.messages)
        await send_empty(send)


class DeleteSession:
    """DELETE: deletes a session if it exists, and ends its container."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id: str = scope["path_params"]["session_id"]
        await self._services.store.sessions.delete(id)
        if self._services.tools is not None:
            await self._services.tools.forget_session(id)
        await send_empty(send)


def _new_file(file: ImportedFile, session: str) -> NewFile:
    return NewFile(
        id=file.id,
        name=file.name,
        data=file.data,
        source=FileSource(*file.source),
        purpose=file.purpose,
        mime_type=file.mime_type,
        format=file.format,
        session=session,
        size_bytes=file.size_bytes,
        code=file.code,
        message=file.message,
    )


def _file_object(file: StoredFile, body: bytes | None) -> dict[str, Any]:
    """Return the JSON object of a file. `body`: the content to include; None: no content."""
    source = file.source
    fields: dict[str, Any] = {
        "id": file.id,
        "name": file.name,
        "format": file.format,
        "mime_type": file.mime_type,
        "bytes": file.size_bytes,
        "created_at": file.created_at,
        "purpose": file.purpose,
        "source": {"tool": source.tool, "round": source.round, "turn": source.turn},
    }
    if file.code is not None:
        return fields | {"code": file.code, "message": file.message}
    if body is None:
        return fields
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return fields | {"data_base64": b64encode(body).decode()}
    return fields | {"text": text, "preview": text[:PREVIEW_CHARS]}
