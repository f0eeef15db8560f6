"""Entries of the route table: files, containers, sessions and approvals."""

from __future__ import annotations

from typing import Final

from penstock.api.route_table.operation import (
    ANY_MEDIA,
    FORM,
    PAGES,
    STORE_ERRORS,
    TEXT_VALUE,
    Operation,
    Query,
)
from penstock.api.routes.approvals import DecideApproval
from penstock.api.routes.files import (
    DeleteFile,
    GetContainerFile,
    GetFile,
    GetFileContent,
    ListContainerFiles,
    ListFiles,
    UploadFile,
)
from penstock.api.routes.sessions import DeleteSession, ExportSession, ImportSession
from penstock.api.schema.errors import ErrorEnvelope
from penstock.api.schema.files_and_approvals import (
    ApprovalDecisionRequest,
    ApprovalDecisionResponse,
    ContainerFileList,
    ContainerFileMetadata,
    FileDeleted,
    FileList,
    FileMetadata,
    FileUpload,
)
from penstock.api.schema.sessions import ImportedSession, SerializedSession

FILES: Final = (
    Operation(
        "GET /v1/files",
        ListFiles,
        id="listFiles",
        tag="Files",
        summary="List files",
        response=FileList,
        errors=STORE_ERRORS,
        query=(*PAGES, Query("purpose", "Only files with this purpose.", TEXT_VALUE)),
    ),
    Operation(
        "POST /v1/files",
        UploadFile,
        id="uploadFile",
        tag="Files",
        summary="Upload a file",
        request=FileUpload,
        request_media=FORM,
        response=FileMetadata,
        errors=STORE_ERRORS,
    ),
    Operation(
        "GET /v1/files/{file_id}",
        GetFile,
        id="getFile",
        tag="Files",
        summary="Get the metadata of a file",
        response=FileMetadata,
        errors=STORE_ERRORS,
    ),
    Operation(
        "DELETE /v1/files/{file_id}",
        DeleteFile,
        id="deleteFile",
        tag="Files",
        summary="Delete a file",
        response=FileDeleted,
        errors=STORE_ERRORS,
    ),
    Operation(
        "GET /v1/files/{file_id}/content",
        GetFileContent,
        id="getFileContent",
        tag="Files",
        summary="Get the content of a file",
        media=ANY_MEDIA,
        errors=STORE_ERRORS,
    ),
    Operation(
        "GET /v1/containers/{container_id}/files",
        ListContainerFiles,
        id="listContainerFiles",
        tag="Files",
        summary="List the files of a container",
        response=ContainerFileList,
        errors=STORE_ERRORS,
        query=PAGES,
    ),
    Operation(
        "GET /v1/containers/{container_id}/files/{file_id}",
        GetContainerFile,
        id="getContainerFile",
        tag="Files",
        summary="Get the metadata of a file, in any container",
        response=ContainerFileMetadata,
        errors=STORE_ERRORS,
    ),
    Operation(
        "GET /v1/containers/{container_id}/files/{file_id}/content",
        GetFileContent,
        id="getContainerFileContent",
        tag="Files",
        summary="Get the content of a file, in any container",
        media=ANY_MEDIA,
        errors=STORE_ERRORS,
    ),
)

SESSIONS: Final = (
    Operation(
        "GET /v1/sessions/{session_id:any}",
        ExportSession,
        id="exportSession",
        tag="Sessions",
        summary="Export a session",
        response=SerializedSession,
        errors=STORE_ERRORS,
    ),
    Operation(
        "PUT /v1/sessions/{session_id:any}",
        ImportSession,
        id="importSession",
        tag="Sessions",
        summary="Import a session, replacing any session with this id",
        request=ImportedSession,
        example={"messages": [{"role": "user", "content": "Name three rivers of Europe."}]},
        media=None,
        errors=STORE_ERRORS,
    ),
    Operation(
        "DELETE /v1/sessions/{session_id:any}",
        DeleteSession,
        id="deleteSession",
        tag="Sessions",
        summary="Delete a session if it exists",
        media=None,
        errors=STORE_ERRORS,
    ),
)

APPROVALS: Final = (
    Operation(
        "POST /v1/agent/approvals/{approval_id}",
        DecideApproval,
        id="decideApproval",
        tag="Agent",
        summary="Approve or deny a tool call",
        request=ApprovalDecisionRequest,
        example={"decision": "approve"},
        response=ApprovalDecisionResponse,
        errors=STORE_ERRORS,
        error=(ApprovalDecisionResponse, ErrorEnvelope),
    ),
)
