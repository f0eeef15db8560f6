"""Files and approvals."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.api.schema.agent import FileSource


class FileMetadata(Struct, kw_only=True):
    """A stored file. `filename` and `name` are the same. `truncated`: its body was not kept; `code`
    and `message` say why."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    name: str
    purpose: str
    format: str
    mime_type: str
    status: Literal["processed", "error"]
    source: FileSource
    truncated: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType | None = UNSET


class FileList(Struct):
    """Files, newest or oldest first as asked."""

    object: Literal["list"]
    data: list[FileMetadata]
    has_more: bool
    first_id: str | None
    last_id: str | None


class ContainerFileMetadata(Struct):
    """A file that a run in a container made. `filename`, `name` and `path` are the same."""

    id: str
    object: Literal["container.file"]
    bytes: int
    created_at: int
    filename: str
    name: str
    path: str
    container_id: str | None
    format: str
    mime_type: str
    source: FileSource


class ContainerFileList(Struct):
    """The files of one container."""

    object: Literal["list"]
    data: list[ContainerFileMetadata]
    has_more: bool
    first_id: str | None
    last_id: str | None


class FileDeleted(Struct):
    """The file was deleted."""

    id: str
    object: Literal["file"]
    deleted: bool


class FileUpload(Struct):
    """A form with the file."""

    file: Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]
    purpose: Annotated[str, Meta(min_length=1, description="`user_data` for what requests use.")]


class ApprovalDecisionRequest(Struct):
    """The decision of a client's operator."""

    decision: Literal["approve", "deny"]
    message: Annotated[str, Meta(max_length=16 * 1024)] | None = None
    remember_for_session: bool | None = None


class ApprovalDecisionResponse(Struct):
    """The effect of the decision."""

    status: Literal["resolved", "queued", "not_found"]
