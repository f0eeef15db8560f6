"""The records of the store, as frozen structs. Times are Unix seconds."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from penstock.dialog import Message

ResponseStatus = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]
UNFINISHED: Final = ("queued", "in_progress")


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response of the Responses API.

    body: the JSON of the resource.
    conversation: msgpack of tuple[Message, ...]: all messages up to this answer, without
    instructions.
    owner: the id of the API process that runs it.
    heartbeat_at: when the owner was last alive; 0: the store fills in the current time.
    expires_at: None: the store fills in the server's expiry.
    """

    id: str
    created_at: int
    status: ResponseStatus
    owner: str
    body: bytes
    background: bool = False
    conversation: bytes = b""
    previous_id: str | None = None
    cancel_requested: bool = False
    heartbeat_at: int = 0
    expires_at: int | None = None


class FileSource(msgspec.Struct, frozen=True):
    """The origin of a file: `user_upload`, `input_file` or a tool, with the round and the turn."""

    tool: str
    round: int = 0
    turn: int = 0


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to store.

    data: the body; None: it was too large to keep (then `size_bytes` has its size), or the file is
    a placeholder for an error (then `code` and `message` describe it).
    format: None: derived from the name's suffix.
    id: None: a new `file-<hex>`.
    """

    name: str
    data: bytes | None
    source: FileSource
    purpose: str = "user_data"
    mime_type: str | None = None
    format: str | None = None
    container_id: str | None = None
    session: str | None = None
    id: str | None = None
    size_bytes: int = 0
    code: str | None = None
    message: str | None = None


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a file.

    elided: the body was not kept.
    code, message: the error of a placeholder, which has no body.
    """

    id: str
    name: str
    format: str
    mime_type: str
    size_bytes: int
    created_at: int
    expires_at: int
    purpose: str
    source: FileSource
    container_id: str | None = None
    session: str | None = None
    elided: bool = False
    code: str | None = None
    message: str | None = None


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that requests continue by its id."""

    id: str
    created_at: int
    messages: tuple[Message, ...]


Decision = Literal["approve", "deny"]


class Verdict(msgspec.Struct, frozen=True):
    """The decision on an approval. `message`: for the model, with a denial."""

    decision: Decision
    message: str | None = None


class StoredSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill, with the name and description of its latest version."""

    id: str
    created_at: int
    updated_at: int
    name: str
    description: str
    latest_version: int


class SkillVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a skill. `directory`: the name of the uploaded folder."""

    skill_id: str
    version: int
    created_at: int
    name: str
    description: str
    directory: str

    @property
    def id(self) -> str:
        return version_id(self.skill_id, self.version)


def version_id(skill_id: str, version: int) -> str:
    """Return the id of a version of a skill."""
    return f"{skill_id}_v{version}"


class SkillBundle(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a skill version. `files`: path in its directory (with slashes) -> data."""

    name: str
    description: str
    directory: str
    files: dict[str, bytes]


class EventChunk(NamedTuple):
    """Consecutive events of a stream.

    first: the number of the first event.
    following: the number of the event after the last.
    frames: the events as they were sent.
    """

    first: int
    following: int
    frames: bytes
