"""The JSON of exported and imported sessions."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.api.schema import fields as f
from penstock.api.schema.agent import FileObject
from penstock.api.schema.chat.request import MediaAddress, TextPart
from penstock.api.schema.tools import CalledFunction

MAX_ROUND: Final = 2**31 - 1
Empty = Annotated[
    list[str],
    Meta(
        max_length=0,
        description="Media are parts of `messages` here.",
        extra={
            "code": f.UNSUPPORTED,
            "why": "is not supported; put media into the content of `messages` as parts",
        },
    ),
]
Short = Annotated[str, Meta(min_length=1, max_length=256)]


class SessionImage(Struct, tag="image_url", tag_field="type"):
    """An image part. `url`: an address, or a data: URL with the content."""

    image_url: MediaAddress


class SessionAudio(Struct, tag="audio_url", tag_field="type"):
    """An audio part. `url`: an address, or a data: URL with the content."""

    audio_url: MediaAddress


class SessionVideo(Struct, tag="video_url", tag_field="type"):
    """A video part. `url`: an address, or a data: URL with the content."""

    video_url: MediaAddress


class SessionFileContent(Struct):
    """A file, given by exactly one of `file_id`, `file_data` (base64 or a data: URL) and
    `file_url`."""

    file_id: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET
    file_data: str | UnsetType = UNSET
    file_url: str | UnsetType = UNSET


class SessionFilePart(Struct, tag="file", tag_field="type"):
    """A file part of a message."""

    file: SessionFileContent


class SessionCall(Struct):
    """A tool call that the model made."""

    id: str
    function: CalledFunction
    type: Literal["function"]


class SessionMessage(Struct, kw_only=True):
    """A message of an exported session, in the chat API's form."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        str | list[TextPart | SessionImage | SessionAudio | SessionVideo | SessionFilePart] | None
    )
    name: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[SessionCall] | UnsetType = UNSET


class SerializedSession(Struct):
    """An exported session: its messages and files."""

    messages: list[SessionMessage]
    files: list[FileObject]


class ImportedSource(Struct):
    """The tool, round and turn that made a file. A missing tool is recorded as `session_import`."""

    tool: Short | None = None
    round: Annotated[int, Meta(ge=0, le=MAX_ROUND)] | None = None
    turn: Annotated[int, Meta(ge=0, le=MAX_ROUND)] | None = None


class ImportedFile(Struct, kw_only=True):
    """A file of an imported session. `text` or `data_base64`: the body, which may be absent."""

    id: Annotated[
        str,
        Meta(
            pattern=r"^file[-_][A-Za-z0-9_-]{1,100}$(?!\n)",
            extra={"wanted": 'the id of a file: "file-..." or "file_..."'},
        ),
    ]
    name: str
    purpose: Short | None = None
    mime_type: Short | None = None
    format: Short | None = None
    bytes: f.Count | None = None
    created_at: f.Ignored = None
    source: ImportedSource | None = None
    text: str | None = None
    preview: f.Ignored = None
    data_base64: str | None = None
    code: Short | None = None
    message: Short | None = None


class ImportedFunction(Struct):
    """A called function and its arguments as JSON text."""

    name: str
    arguments: str | None = None


class ImportedCall(Struct):
    """A tool call that the model made."""

    function: ImportedFunction
    id: str | None = None
    type: f.Ignored = None


class ImportedFileContent(Struct):
    """A file, given by exactly one of `file_id`, `file_data` (base64 or a data: URL) and
    `file_url`."""

    file_id: str | None = None
    filename: str | None = None
    file_data: str | None = None
    file_url: str | None = None


class ImportedFilePart(Struct, tag="file", tag_field="type"):
    """A file part of a message."""

    file: ImportedFileContent


SessionPart = TextPart | SessionImage | SessionAudio | SessionVideo | ImportedFilePart


class ImportedMessage(Struct, kw_only=True):
    """A message of an imported session, in the chat API's form. `tool_call_id`: required for the
    role `tool`, whose content must be text. `tool_calls` and `reasoning_content`: used for the role
    `assistant` only."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[SessionPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    is_error: bool | None = None
    reasoning_content: str | None = None
    tool_calls: list[ImportedCall] | None = None


class ImportedSession(Struct):
    """A session to import. It replaces an existing session with the same id."""

    messages: Annotated[list[ImportedMessage], Meta(max_length=10_000)]
    files: Annotated[list[ImportedFile], Meta(max_length=1024)] | None = None
    images: Empty | None = None
    videos: Empty | None = None
