"""Endpoints of `/ui/api/attachments`: uploads and downloads files of chats."""

from __future__ import annotations

import mimetypes
from typing import Final
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from penstock.api.chats.records import attachment_of
from penstock.api.http.multipart import PartHead, read_multipart
from penstock.api.observability.request_record import record_of_request
from penstock.api.routes.answers import with_stall_timeout
from penstock.api.routes.files import CONTENT_HEADERS
from penstock.api.routes.ui.bodies import send_struct
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest

BINARY: Final = "application/octet-stream"
# Types that browsers show without running anything. All other files are downloaded.
SHOWN: Final = frozenset(
    (
        *("image/png", "image/jpeg", "image/webp", "image/gif", "image/avif"),
        *("audio/wav", "audio/x-wav", "audio/mpeg", "audio/ogg", "audio/flac", "audio/mp4"),
        *("audio/webm", "video/webm", "video/mp4"),
        "text/plain",
    )
)


class UploadAttachment:
    """POST: stores the form field `file` of a multipart body. It is deleted after a day unless a
    message uses it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = self._services.bodies.stream(record_of_request(), receive)
        head: PartHead | None = None
        current: PartHead | None = None
        data = bytearray()
        async for event in read_multipart(scope, body):
            if isinstance(event, PartHead):
                if event.name == "file" and head is not None:
                    raise InvalidRequest("`file` is given twice; send it once", field="file")
                current = event
                head = event if event.name == "file" else head
            elif current is not None and current.name == "file":
                data += event
        if head is None:
            raise InvalidRequest(
                "`file` is required: send the file to upload",
                field="file",
                code="missing_required_parameter",
            )
        name = head.filename or ""
        attachments = self._services.store.chat_attachments
        stored = await attachments.create(name, _mime_type(head), bytes(data))
        await send_struct(attachment_of(stored), send)


class GetAttachment:
    """GET: returns the content of an attachment. Raises NotFound."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id: str = scope["path_params"]["attachment_id"]
        attachments = self._services.store.chat_attachments
        stored = await attachments.get(id)
        data = await attachments.read(id)
        shown = stored.mime_type in SHOWN
        way = "inline" if shown else "attachment"
        disposition = f"{way}; filename*=UTF-8''{quote(stored.name, safe='')}"
        headers = [
            (b"content-type", stored.mime_type.encode() if shown else BINARY.encode()),
            (b"content-length", b"%d" % len(data)),
            (b"content-disposition", disposition.encode("ascii")),
            (b"cache-control", b"private, max-age=31536000, immutable"),
            *CONTENT_HEADERS,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = send({"type": "http.response.body", "body": data})
        await with_stall_timeout(body, scope, self._services.settings.stall_timeout_s)


def _mime_type(head: PartHead) -> str:
    """Return the type of an uploaded file: that of its name, or a type of SHOWN that the browser
    sent. Other types from clients are not trusted."""
    sent = (head.content_type or "").partition(";")[0].strip().lower()
    if sent in SHOWN:
        return sent
    if sent.startswith("text/"):
        return "text/plain"
    return mimetypes.guess_type(head.filename or "")[0] or BINARY
