"""What the store keeps, as frozen records. Times are Unix seconds."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from penstock.dialog import Message

ResponseStatus = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]
UNFINISHED: Final = ("queued", "in_progress")


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response of the responses interface.

    `body`: the JSON of the resource. `conversation`: msgpack of tuple[Message, ...], the whole
    chain with this answer, without instructions. `owner`: the process that works on it, whose
    `heartbeat_at` tells that it lives; 0 and None: the store fills in now and the server's expiry.
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
    """Who made a file: `user_upload`, `input_file` or a tool, in which round of which turn."""

    tool: str
    round: int = 0
    turn: int = 0


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to store. `id` None: a new `file-<hex>`. `format` None: from the name's suffix.

    `data` None: there is no body: it was too large to keep, and `size_bytes` tells how large, or it
    was never made, and `code` and `message` tell why (an error placeholder).
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
    """What is known of a file; its body is read apart.

    `elided`: the body is not kept. `code`, `message`: an error placeholder, without a body.
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
    """A conversation that goes on by its id."""

    id: str
    created_at: int
    messages: tuple[Message, ...]


Decision = Literal["approve", "deny"]


class Verdict(msgspec.Struct, frozen=True):
    """What was decided on an approval. `message`: for the model, of a denial."""

    decision: Decision
    message: str | None = None


class StoredSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill, described as its latest version is."""

    id: str
    created_at: int
    updated_at: int
    name: str
    description: str
    latest_version: int


class SkillVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a skill. `directory`: the name of the folder that was uploaded."""

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
    """The id of a version of a skill."""
    return f"{skill_id}_v{version}"


class SkillBundle(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a skill's version: `files` by their path in its directory, with slashes."""

    name: str
    description: str
    directory: str
    files: dict[str, bytes]


class EventChunk(NamedTuple):
    """Events of a stream that follow each other. `first`: the number of the first, `following`: of
    the one after the last. `frames`: they themselves, as they were sent."""

    first: int
    following: int
    frames: bytes
