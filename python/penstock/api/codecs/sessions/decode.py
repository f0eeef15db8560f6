"""Decodes a session to import into messages of the dialog and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.codecs.request_fields.refusals import refuse, refuse_missing
from penstock.api.schema import sessions as s
from penstock.api.schema.chat.request import TextPart
from penstock.base.data_url import SCHEME, decode_base64, decode_data_url
from penstock.base.ids import new_id
from penstock.dialog import (
    Audio,
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Video,
)

# The source tool of an imported file that does not name its tool.
IMPORT_TOOL: Final = "session_import"


@dataclass(frozen=True)
class ImportedFile:
    """A file of an imported session. `data` is None if the export left the body out, or if the file
    is an error placeholder with `code` and `message`. `source`: (tool, round, turn) that made the
    file."""

    id: str
    name: str
    purpose: str
    mime_type: str | None
    format: str | None
    data: bytes | None
    size_bytes: int
    source: tuple[str, int, int]
    code: str | None
    message: str | None


@dataclass(frozen=True)
class SerializedSession:
    messages: tuple[Message, ...]
    files: tuple[ImportedFile, ...]


def decode_session(body: bytes) -> SerializedSession:
    """Decode a session to import. Raises InvalidRequest, which names the wrong field."""
    session = decode_body(body, s.ImportedSession)
    messages = enumerate(session.messages)
    files = enumerate(session.files or ())
    return SerializedSession(
        messages=tuple(_message(entry, f"messages[{index}]") for index, entry in messages),
        files=tuple(_imported(entry, f"files[{index}]") for index, entry in files),
    )


def _message(entry: s.ImportedMessage, path: str) -> Message:
    role, name = entry.role, entry.name
    content = _content(entry.content, f"{path}.content")
    if role == "tool":
        if entry.tool_call_id is None:
            refuse_missing(f"{path}.tool_call_id", "a string")
        if not all(isinstance(part, Text) for part in content):
            refuse(f"{path}.content", "of a tool must be text")
        text = "".join(part.text for part in content if isinstance(part, Text))
        result = ToolResult(entry.tool_call_id, text, name, entry.is_error or False)
        return Message("tool", (result,), name)
    if role == "assistant":
        thought = entry.reasoning_content
        reasoning = (Reasoning(thought),) if thought else ()
        calls = tuple(_call(call) for call in entry.tool_calls or ())
        return Message("assistant", (*reasoning, *content, *calls), name)
    return Message(role, content, name)


def _call(call: s.ImportedCall) -> ToolCall:
    arguments = call.function.arguments
    return ToolCall(
        id=call.id or new_id("call_"),
        name=call.function.name,
        arguments="{}" if arguments is None else arguments,
    )


def _content(content: str | list[s.SessionPart] | None, path: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(part, f"{path}[{index}]") for index, part in enumerate(content or ()))


def _part(part: s.SessionPart, path: str) -> Part:
    match part:
        case TextPart():
            return Text(part.text)
        case s.SessionImage():
            return Image(*_media(part.image_url.url, f"{path}.image_url.url"))
        case s.SessionAudio():
            return Audio(*_media(part.audio_url.url, f"{path}.audio_url.url"))
        case s.SessionVideo():
            return Video(*_media(part.video_url.url, f"{path}.video_url.url"))
        case s.ImportedFilePart():
            return _file(part.file, f"{path}.file")
    raise AssertionError(part)


def _media(url: str, path: str) -> tuple[str | None, bytes | None, str | None]:
    """Return (URL, content, MIME type). URL or content is None: a data: URL is decoded, any other
    URL is kept."""
    if url[: len(SCHEME)].lower() != SCHEME:
        return url, None, None
    mime_type, data = _data(url, path)
    return None, data, mime_type


def _file(source: s.ImportedFileContent, path: str) -> File:
    mime_type, data = None, None
    if source.file_data is not None:
        mime_type, data = _data(source.file_data, f"{path}.file_data")
    given = (source.file_id, data, source.file_url)
    if sum(value is not None for value in given) != 1:
        refuse(f"{path}.file_id", "is required, or one of `file_data` and `file_url` in its place")
    return File(source.file_id, source.filename, data, source.file_url, mime_type)


def _data(text: str, path: str) -> tuple[str | None, bytes]:
    """Return (MIME type, bytes) of a data: URL or of plain base64, for which the MIME type is
    None."""
    try:
        if text[: len(SCHEME)].lower() != SCHEME:
            return None, decode_base64(text)
        data, mime_type = decode_data_url(text)
        return mime_type, data
    except ValueError:
        refuse(path, "must be base64, or a data: URL of it")


def _imported(entry: s.ImportedFile, path: str) -> ImportedFile:
    """Return a file to import. Raises InvalidRequest for unprintable characters or invalid
    base64."""
    short = {
        "purpose": entry.purpose,
        "mime_type": entry.mime_type,
        "format": entry.format,
        "code": entry.code,
        "message": entry.message,
    }
    source = entry.source or s.ImportedSource()
    for field, text in (*short.items(), ("source.tool", source.tool)):
        if text is not None and not text.isprintable():
            refuse(f"{path}.{field}", "must be printable characters")
    data = entry.text.encode() if entry.text is not None else None
    if entry.data_base64 is not None:
        _, data = _data(entry.data_base64, f"{path}.data_base64")
    return ImportedFile(
        id=entry.id,
        name=entry.name,
        purpose=entry.purpose or "user_data",
        mime_type=entry.mime_type,
        format=entry.format,
        data=data,
        size_bytes=entry.bytes or 0,
        source=(source.tool or IMPORT_TOOL, source.round or 0, source.turn or 0),
        code=entry.code,
        message=entry.message,
    )
