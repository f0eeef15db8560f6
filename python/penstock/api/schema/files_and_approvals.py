"""Answers and forms of the file routes, and decisions on approvals."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.api.schema.agent import FileSource


class FileMetadata(Struct, kw_only=True):
    """A stored file without its body. `filename` and `name` are equal; times are Unix seconds.
    `truncated`: the body was not kept; `code` and `message` say why."""

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
    """A page of files, in the order that the request asks for."""

    object: Literal["list"]
    data: list[FileMetadata]
    has_more: bool
    first_id: str | None
    last_id: str | None


class ContainerFileMetadata(Struct):
    """A file that a tool made in a container. `filename`, `name` and `path` are equal."""

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
    """The files that tools made in one container."""

    object: Literal["list"]
    data: list[ContainerFileMetadata]
    has_more: bool
    first_id: str | None
    last_id: str | None


class FileDeleted(Struct):
    """Confirms that a file was deleted."""

    id: str
    object: Literal["file"]
    deleted: bool


class FileUpload(Struct):
    """A multipart form that uploads one file."""

    file: Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]
    purpose: Annotated[str, Meta(min_length=1, description="`user_data` for what requests use.")]


class ApprovalDecisionRequest(Struct):
    """A person's decision on a tool call that waits for approval. `message`: text for the model if
    the call is denied. `remember_for_session`: apply the decision to later calls of the session."""

    decision: Literal["approve", "deny"]
    message: Annotated[str, Meta(max_length=16 * 1024)] | None = None
    remember_for_session: bool | None = None


class ApprovalDecisionResponse(Struct):
    """The result of sending a decision. `not_found`: no call waits under this approval id."""

    status: Literal["resolved", "queued", "not_found"]
