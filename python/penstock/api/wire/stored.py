"""Files, sessions, skills and approvals: what is shown of them, and what is sent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct


class FileMetadata(Struct):
    """A stored file. `source` attributes it: tool, round, turn. `filename` and `name` are the same,
    for clients of either. `code` and `message` tell why there is no body."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    name: str
    purpose: str
    mime_type: str
    source: dict[str, Any]
    format: str | None = None
    code: str | None = None
    message: str | None = None


class FileList(Struct):
    """Files, newest or oldest first as asked."""

    object: Literal["list"]
    data: list[FileMetadata]


class ContainerFileMetadata(Struct):
    """A file that a run in a container made."""

    id: str
    object: Literal["container.file"]
    bytes: int
    created_at: int
    container_id: str
    mime_type: str
    source: dict[str, Any]
    format: str | None = None


class ContainerFileList(Struct):
    """The files of one container."""

    object: Literal["list"]
    data: list[ContainerFileMetadata]


class FileDeleted(Struct):
    """The file is gone."""

    id: str
    object: Literal["file"]
    deleted: bool


class FileUpload(Struct):
    """A form with the file."""

    file: Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]
    purpose: Annotated[str, Meta(min_length=1, description="`user_data` for what requests use.")]


class SerializedSession(Struct):
    """What a session was exported as."""

    messages: list[dict[str, Any]]
    images: list[str] | None = None
    videos: list[dict[str, Any]] | None = None
    files: list[dict[str, Any]] | None = None


class SkillUpload(Struct):
    """A form with a zip archive, or the files of one folder; one of them is SKILL.md."""

    files: list[str]


class ApprovalDecisionRequest(Struct):
    """What the operator of a client decided."""

    decision: Literal["approve", "deny"]
    message: str | None = None
    remember_for_session: bool | None = None


class ApprovalDecisionResponse(Struct):
    """What became of the decision."""

    status: Literal["resolved", "queued", "not_found"]
