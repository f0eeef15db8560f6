"""A serialized session -> messages of the dialog, and files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.api.codecs.request_fields.fields import Fields, decode_object
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

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
PARTS: Final = ("text", "image_url", "audio_url", "video_url", "file")
MAX_MESSAGES: Final = 10_000
MAX_FILES: Final = 1024
MAX_CHARS: Final = 256
MAX_ROUND: Final = 2**31 - 1
# Of a file whose export does not tell who made it.
IMPORT_TOOL: Final = "session_import"
FILE_ID: Final = re.compile(r"file[-_][A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class ImportedFile:
    """A file of an imported session. `data` None: its body was left out of the export, or it is an
    error placeholder with `code` and `message`. `source`: (tool, round, turn)."""

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
    """Raises InvalidRequest, which names the field."""
    fields = decode_object(body)
    if fields.get("messages") is None:
        fields.refuse_missing("messages", "an array of messages")
    for key in ("images", "videos"):
        if fields.array(key, "an array"):
            fields.refuse(
                key,
                "cannot be placed; put them into the content of `messages` as parts",
                code="unsupported_value",
            )
    messages = tuple(_message(entry) for entry in fields.objects("messages"))
    files = tuple(_imported(entry) for entry in fields.objects("files"))
    for key, found, most in (("messages", messages, MAX_MESSAGES), ("files", files, MAX_FILES)):
        if len(found) > most:
            fields.refuse(key, f"may hold at most {most}, not {len(found)}")
    return SerializedSession(messages, files)


def _message(entry: Fields) -> Message:
    entry.required_string("role")
    role = entry.choice("role", ROLES)
    name = entry.string("name")
    content = _content(entry)
    match role:
        case "tool":
            call_id = entry.required_string("tool_call_id")
            if not all(isinstance(part, Text) for part in content):
                entry.refuse("content", "of a tool must be text")
            text = "".join(part.text for part in content if isinstance(part, Text))
            failed = bool(entry.boolean("is_error"))
            return Message("tool", (ToolResult(call_id, text, name, failed),), name)
        case "assistant":
            thought = entry.string("reasoning_content")
            reasoning = (Reasoning(thought),) if thought else ()
            calls = tuple(_call(call) for call in entry.objects("tool_calls"))
            return Message("assistant", (*reasoning, *content, *calls), name)
        case "system" | "developer" | "user":
            return Message(role, content, name)
        case _:
            raise AssertionError(role)


def _call(call: Fields) -> ToolCall:
    function = call.required_object("function")
    arguments = function.string("arguments")
    return ToolCall(
        id=call.string("id") or new_id("call_"),
        name=function.required_string("name"),
        arguments="{}" if arguments is None else arguments,
    )


def _content(entry: Fields) -> tuple[Part, ...]:
    value = entry.get("content")
    if type(value) is str:
        return (Text(value),)
    if value is not None and type(value) is not list:
        entry.refuse_type("content", "a string, null or an array of parts")
    return tuple(_part(part) for part in entry.objects("content"))


def _part(part: Fields) -> Part:
    part.required_string("type")
    match part.choice("type", PARTS):
        case "text":
            return Text(part.required_string("text"))
        case "image_url":
            return Image(*_media(part.required_object("image_url")))
        case "audio_url":
            return Audio(*_media(part.required_object("audio_url")))
        case "video_url":
            return Video(*_media(part.required_object("video_url")))
        case _:
            return _file(part.required_object("file"))


def _media(source: Fields) -> tuple[str | None, bytes | None, str | None]:
    """(url, data, MIME type), one of the first two."""
    url = source.required_string("url")
    if url[: len(SCHEME)].lower() != SCHEME:
        return url, None, None
    mime_type, data = _data(source, "url", url)
    return None, data, mime_type


def _file(source: Fields) -> File:
    mime_type, data = None, None
    text = source.string("file_data")
    if text is not None:
        mime_type, data = _data(source, "file_data", text)
    given = (source.string("file_id"), data, source.string("file_url"))
    if sum(value is not None for value in given) != 1:
        source.refuse("file_id", "is required, or one of `file_data` and `file_url` in its place")
    return File(given[0], source.string("filename"), data, given[2], mime_type)


def _data(fields: Fields, key: str, text: str) -> tuple[str | None, bytes]:
    """(MIME type, bytes) of a data URL, or of plain base64."""
    try:
        if text[: len(SCHEME)].lower() != SCHEME:
            return None, decode_base64(text)
        data, mime_type = decode_data_url(text)
        return mime_type, data
    except ValueError:
        fields.refuse(key, "must be base64, or a data URL of it")


def _imported(entry: Fields) -> ImportedFile:
    """A File object, as the specification shows it."""
    id = entry.required_string("id")
    if not FILE_ID.fullmatch(id):
        entry.refuse("id", 'must be the id of a file: "file-..." or "file_..."')
    text, packed = entry.string("text"), entry.string("data_base64")
    data = text.encode() if text is not None else None
    if packed is not None:
        _, data = _data(entry, "data_base64", packed)
    source = entry.object("source") or Fields({})
    return ImportedFile(
        id=id,
        name=entry.required_string("name"),
        purpose=_short(entry, "purpose") or "user_data",
        mime_type=_short(entry, "mime_type"),
        format=_short(entry, "format"),
        data=data,
        size_bytes=entry.integer("bytes", 0) or 0,
        source=(
            _short(source, "tool") or IMPORT_TOOL,
            source.integer("round", 0, MAX_ROUND) or 0,
            source.integer("turn", 0, MAX_ROUND) or 0,
        ),
        code=_short(entry, "code"),
        message=_short(entry, "message"),
    )


def _short(fields: Fields, key: str) -> str | None:
    value = fields.string(key)
    if value is not None and not (0 < len(value) <= MAX_CHARS and value.isprintable()):
        fields.refuse(key, f"must be 1 to {MAX_CHARS} printable characters")
    return value
