"""Endpoints of `/v1/files`, and of the files of a container under `/v1/containers`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from penstock.api.http.multipart import PartHead, read_multipart
from penstock.api.observability.request_record import record_of_request
from penstock.api.routes.answers import query_of, send_value, values_of, with_stall_timeout
from penstock.api.routes.anthropic import is_anthropic_client, rfc3339
from penstock.api.routes.paging import envelope, in_order, page_of
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest
from penstock.store.errors import file_not_found
from penstock.store.records import FileSource, NewFile, StoredFile

UPLOADED: Final = FileSource("user_upload")
UPLOAD_FIELDS: Final = ("file", "purpose")
MAX_FIELD_BYTES: Final = 1024
MAX_PURPOSE_CHARS: Final = 64
MAX_TYPE_CHARS: Final = 200
# Anthropic's clients upload files without a purpose.
ANTHROPIC_DEFAULT_PURPOSE: Final = b"user_data"
# Prevent browsers from running an uploaded file as a page of this server.
CONTENT_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
)


class ListFiles:
    """GET: returns a page of the files. Query parameters may select a `purpose` and `ids`; unknown
    ids are omitted."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = query_of(scope)
        files = await self._services.store.files.list()
        if "purpose" in query:
            files = [file for file in files if file.purpose == query["purpose"]]
        ids = set(values_of(scope, "ids"))
        if ids:
            files = [file for file in files if file.id in ids]
        answer = _list(files, query, _shape(scope))
        if is_anthropic_client(scope):  # Anthropic's clients use either way of paging
            answer["next_page"] = answer["last_id"] if answer["has_more"] else None
        await send_value(answer, send)


class UploadFile:
    """POST: stores the form field `file` with a `purpose`, from a multipart body. The file is
    written to the store as it arrives."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of_request()
        upload = await self._services.store.files.begin()
        head: PartHead | None = None
        current: PartHead | None = None
        purpose = b""
        given: set[str] = set()
        try:
            body = self._services.bodies.stream(record, receive)
            async for event in read_multipart(scope, body):
                if isinstance(event, PartHead):
                    if event.name in UPLOAD_FIELDS and event.name in given:
                        name = event.name
                        raise InvalidRequest(f"`{name}` is given twice; send it once", field=name)
                    given.add(event.name)
                    current = event
                    head = event if event.name == "file" else head
                elif current is not None and current.name == "file":
                    await upload.write(event)
                elif current is not None and current.name == "purpose":
                    purpose = _append_purpose(purpose, event)
            if is_anthropic_client(scope) and "purpose" not in given:
                purpose = ANTHROPIC_DEFAULT_PURPOSE
            stored = await upload.finish(_new_file(head, purpose))
        except BaseException:
            await upload.abort()
            raise
        await send_value(_shape(scope)(stored), send)


class GetFile:
    """GET: returns the metadata of a file."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_value(_shape(scope)(await _file(self._services, scope)), send)


class DeleteFile:
    """DELETE: deletes a file."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id = (await _file(self._services, scope)).id
        if not await self._services.store.files.delete(id):
            raise file_not_found(id)
        deleted = {"id": id, "object": "file", "deleted": True}
        await send_value(
            {**deleted, "type": "file_deleted"} if is_anthropic_client(scope) else deleted, send
        )


class GetFileContent:
    """GET: returns the content of a file, streamed from the store. Errors: 404 unknown or expired,
    410 content not kept, 422 placeholder for an error."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        file = await _file(self._services, scope)
        headers = [
            (b"content-type", file.mime_type.encode("latin-1", "replace")),
            (b"content-length", b"%d" % file.size_bytes),
            (b"content-disposition", _disposition(file.name)),
            *CONTENT_HEADERS,
        ]
        stall_s = self._services.settings.stall_timeout_s
        async with aclosing(await self._services.store.files.open(file.id)) as pieces:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for piece in pieces:
                part = send({"type": "http.response.body", "body": piece, "more_body": True})
                await with_stall_timeout(part, scope, stall_s)
        await with_stall_timeout(send({"type": "http.response.body"}), scope, stall_s)


class ListContainerFiles:
    """GET: returns a page of the files of a container; the page is empty for an unknown
    container."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        container: str = scope["path_params"]["container_id"]
        files = await self._services.store.files.list(container)
        await send_value(_list(files, query_of(scope), _container_metadata), send)


class GetContainerFile:
    """GET: returns the metadata of a file in the format of container files. The container id in the
    path is ignored."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_value(_container_metadata(await _file(self._services, scope)), send)


async def _file(services: Services, scope: Scope) -> StoredFile:
    """Return the file with the id in the path, whichever container it is in. Raises NotFound."""
    id: str = scope["path_params"]["file_id"]
    file = await services.store.files.get(id)
    if file is None:
        raise file_not_found(id)
    return file


def _append_purpose(purpose: bytes, data: bytes) -> bytes:
    """Return `purpose` with `data` appended. Raises InvalidRequest if the field becomes too
    long."""
    if len(purpose) + len(data) > MAX_FIELD_BYTES:
        raise InvalidRequest(
            f"`purpose` must be at most {MAX_PURPOSE_CHARS} characters", field="purpose"
        )
    return purpose + data


def _new_file(head: PartHead | None, purpose: bytes) -> NewFile:
    if head is None:
        raise InvalidRequest(
            "`file` is required: send the file to upload",
            field="file",
            code="missing_required_parameter",
        )
    text = purpose.decode("utf-8", "replace").strip()
    if not text:
        raise InvalidRequest(
            '`purpose` is required, for example "user_data"',
            field="purpose",
            code="missing_required_parameter",
        )
    if len(text) > MAX_PURPOSE_CHARS or not text.isprintable():
        raise InvalidRequest(
            f"`purpose` must be at most {MAX_PURPOSE_CHARS} printable characters", field="purpose"
        )
    return NewFile(
        name=head.filename or "",
        data=None,
        source=UPLOADED,
        purpose=text,
        mime_type=_mime_type(head.content_type),
    )


def _mime_type(content_type: str | None) -> str | None:
    """Return the content type that the client sent, or None if it is absent, invalid or generic."""
    kind = (content_type or "").strip()
    valid = kind.isascii() and kind.isprintable() and 0 < kind.find("/") < len(kind) - 1
    if not valid or len(kind) > MAX_TYPE_CHARS or kind == "application/octet-stream":
        return None
    return kind


def _list(files: list[StoredFile], query: dict[str, str], shape: Any) -> dict[str, Any]:
    page, more = page_of(in_order(files, query), query, lambda file: file.id)
    return envelope([shape(file) for file in page], more)


def _metadata(file: StoredFile) -> dict[str, Any]:
    fields = {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.name,
        "name": file.name,
        "purpose": file.purpose,
        "format": file.format,
        "mime_type": file.mime_type,
        "status": "processed" if file.code is None else "error",
        "source": _source(file),
    }
    if file.code is not None:
        return fields | {"code": file.code, "message": file.message}
    return fields | {"truncated": True} if file.elided else fields


def _anthropic_metadata(file: StoredFile) -> dict[str, Any]:
    """Return a file's metadata with the field names and the time format of Anthropic's API."""
    return {
        **_metadata(file),
        "type": "file",
        "size_bytes": file.size_bytes,
        "created_at": rfc3339(file.created_at),
        "downloadable": not file.elided and file.code is None,
    }


def _shape(scope: Scope) -> Callable[[StoredFile], dict[str, Any]]:
    return _anthropic_metadata if is_anthropic_client(scope) else _metadata


def _container_metadata(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "container.file",
        "bytes": file.size_bytes,
        "created_at": file.created_at,
        "filename": file.name,
        "name": file.name,
        "path": file.name,
        "container_id": file.container_id,
        "format": file.format,
        "mime_type": file.mime_type,
        "source": _source(file),
    }


def _source(file: StoredFile) -> dict[str, Any]:
    source = file.source
    return {"tool": source.tool, "round": source.round, "turn": source.turn}


def _disposition(name: str) -> bytes:
    """Return the value of Content-Disposition, with the file name in ASCII for old clients and in
    full (RFC 6266)."""
    plain = "".join(c if c.isascii() and c not in '"\\%' else "_" for c in name)
    return f"inline; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}".encode("ascii")
