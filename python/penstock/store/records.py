"""The records of the store, as frozen structs. All times are Unix seconds."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from penstock.dialog import Message

ResponseStatus = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]
UNFINISHED: Final = ("queued", "in_progress")


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response of the Responses API.

    `owner`: the id of the API process that runs the response.
    `body`: the JSON of the response object.
    `conversation`: msgpack of tuple[Message, ...]: all messages up to and including the answer,
    without instructions.
    `previous_id`: the id of the response that this response continues.
    `container`: the id of the container of the conversation, "" in rows of older versions.
    `turn_length`: the number of messages in `conversation` that the response answers, None in rows
    of older versions, which have at most one message after these.
    `heartbeat_at`: the time at which the owner was last alive; 0: `create` sets the current time.
    `expires_at`: None: `create` sets the expiry from the server's settings.
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
    container: str = ""
    turn_length: int | None = None


class FileSource(msgspec.Struct, frozen=True):
    """The origin of a file.

    `tool`: `user_upload`, `input_file` or the name of the tool that made the file.
    `round`, `turn`: the position in the conversation at which a tool made the file.
    """

    tool: str
    round: int = 0
    turn: int = 0


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to store.

    `data`: the content; None if it was too large to keep (`size_bytes` then has its size) or if the
    file is a placeholder for an error (`code` and `message` then describe the error).
    `format`: None: derived from the suffix of `name`.
    `id`: None: a new `file-<hex>`.
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
    """The metadata of a stored file.

    `elided`: True if the content was not kept.
    `code`, `message`: the error for which this file is a placeholder; such a file has no content.
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
    """A stored conversation. Requests with its id as their session continue it.

    `messages`: all messages, oldest first.
    """

    id: str
    created_at: int
    messages: tuple[Message, ...]


Decision = Literal["approve", "deny"]


class Verdict(msgspec.Struct, frozen=True):
    """The decision on an approval. `message`: a text for the model, sent with a denial."""

    decision: Decision
    message: str | None = None


class StoredSkill(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a skill. `name` and `description` are those of its latest version."""

    id: str
    created_at: int
    updated_at: int
    name: str
    description: str
    latest_version: int


class SkillVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of one version of a skill. `directory`: the name of the uploaded folder."""

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
    """The content of a skill version. `files`: path relative to `directory`, with slashes ->
    data."""

    name: str
    description: str
    directory: str
    files: dict[str, bytes]


class EventChunk(NamedTuple):
    """Consecutive events of a response's stream.

    `first`: the number of the first event in the chunk.
    `following`: the number of the last event plus 1.
    `frames`: the events as bytes, as they were sent to the client.
    """

    first: int
    following: int
    frames: bytes
