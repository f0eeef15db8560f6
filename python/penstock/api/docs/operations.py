"""Every route as the served description tells it: what it takes, answers and refuses.

A row for each route of `app`; a test holds the two together.
"""

from __future__ import annotations

from typing import Any, Final

import penstock.api.http.path_convertors  # noqa: F401 - the convertor that paths below name
from penstock.api.docs.operation import (
    ADAPTER_ERRORS,
    ANTHROPIC_PAGES,
    BODY_ERRORS,
    CARD_PAGES,
    ENGINE_ERRORS,
    FILE_ERRORS,
    FORM,
    JSON,
    PAGES,
    RESUMED,
    SESSION_ERRORS,
    STORE_ERRORS,
    TEXT,
    TEXT_VALUE,
    Operation,
    Query,
)
from penstock.api.schema.adapters import (
    LoadLoraAdapterRequest,
    LoraAdapterList,
    LoraAdapterObject,
    UnloadLoraAdapterRequest,
)
from penstock.api.schema.agent import (
    AgenticToolApprovalRequired,
    AgenticToolCallProgress,
    FileObject,
)
from penstock.api.schema.chat.answers import ChatCompletionChunkResponse, ChatCompletionResponse
from penstock.api.schema.chat.request import ChatCompletionRequest
from penstock.api.schema.completions import (
    CompletionChunkResponse,
    CompletionRequest,
    CompletionResponse,
)
from penstock.api.schema.embeddings import EmbeddingRequest, EmbeddingResponse
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
from penstock.api.schema.messages.answers import (
    CountTokensResponse,
    MessageResponse,
    MessagesError,
    MessageStreamEvent,
)
from penstock.api.schema.messages.request import MessagesRequest
from penstock.api.schema.models import (
    ModelObject,
    ModelObjects,
    ModelOperationRequest,
    ModelStatusResponse,
    TuneModelRequest,
)
from penstock.api.schema.reranking import RerankRequest, RerankResponse
from penstock.api.schema.responses.request_and_resource import (
    InputTokens,
    ItemList,
    OpenResponsesCreateRequest,
    ResponseDeleted,
    ResponseResource,
)
from penstock.api.schema.responses.stream_events import ResponseStreamEvent
from penstock.api.schema.sessions import ImportedSession, SerializedSession
from penstock.api.schema.skills import (
    AnthropicSkill,
    AnthropicSkillDeleted,
    AnthropicSkillList,
    AnthropicSkillVersion,
    AnthropicSkillVersionDeleted,
    SkillDeleted,
    SkillList,
    SkillObject,
    SkillUpload,
    SkillVersionDeleted,
    SkillVersionList,
    SkillVersionObject,
)
from penstock.api.schema.system import Diagnosis
from penstock.system.facts import SystemInfo

FILE_EVENT: Final = ("FileObject", FileObject)
TOOL_EVENTS: Final = (
    ("AgenticToolCallProgress", AgenticToolCallProgress),
    ("AgenticToolApprovalRequired", AgenticToolApprovalRequired),
    FILE_EVENT,
)
RESPONSE_EVENTS: Final = (("ResponseStreamEvent", ResponseStreamEvent), FILE_EVENT)

# One operation, where the clients of each service look for it.
RERANK_OPERATIONS: Final = {
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerankV2",
    "/rerank": "rerankUnversioned",
}

# What an operation is called stands on one line: four names that need no keywords.
OPERATIONS: Final = (
    Operation(
        *("POST", "/v1/chat/completions", "createChatCompletion", "Inference"),
        "Answer a chat",
        request=ChatCompletionRequest,
        answer=ChatCompletionResponse,
        events=(("ChatCompletionChunkResponse", ChatCompletionChunkResponse), *TOOL_EVENTS),
        errors=(*BODY_ERRORS, *ENGINE_ERRORS, *FILE_ERRORS, *SESSION_ERRORS),
    ),
    Operation(
        *("POST", "/v1/completions", "createCompletion", "Inference"),
        "Continue a text",
        request=CompletionRequest,
        answer=CompletionResponse,
        events=(("CompletionChunkResponse", CompletionChunkResponse),),
        errors=(*BODY_ERRORS, *ENGINE_ERRORS),
    ),
    Operation(
        *("POST", "/v1/embeddings", "createEmbedding", "Inference"),
        "Embed texts",
        request=EmbeddingRequest,
        answer=EmbeddingResponse,
        errors=(*BODY_ERRORS, *ENGINE_ERRORS),
    ),
    *(
        Operation(
            *("POST", path, id, "Inference"),
            "Order documents by their relevance to a query",
            request=RerankRequest,
            answer=RerankResponse,
            errors=(*BODY_ERRORS, *ENGINE_ERRORS),
        )
        for path, id in RERANK_OPERATIONS.items()
    ),
    Operation(
        *("POST", "/v1/responses", "createResponse", "Responses"),
        "Answer a turn; streamed, stored, in the background",
        request=OpenResponsesCreateRequest,
        answer=ResponseResource,
        events=RESPONSE_EVENTS,
        errors=(*BODY_ERRORS, *ENGINE_ERRORS, *FILE_ERRORS, 507),
    ),
    Operation(
        *("POST", "/v1/responses/input_tokens", "countInputTokens", "Responses"),
        "Count the tokens of a prompt",
        request=OpenResponsesCreateRequest,
        answer=InputTokens,
        errors=(*BODY_ERRORS, *ENGINE_ERRORS, *FILE_ERRORS),
    ),
    Operation(
        *("GET", "/v1/responses/{response_id}", "getResponse", "Responses"),
        "A stored response",
        answer=ResponseResource,
        events=RESPONSE_EVENTS,
        errors=STORE_ERRORS,
        query=RESUMED,
    ),
    Operation(
        *("DELETE", "/v1/responses/{response_id}", "deleteResponse", "Responses"),
        "Delete a stored response",
        answer=ResponseDeleted,
        errors=STORE_ERRORS,
    ),
    Operation(
        *("POST", "/v1/responses/{response_id}/cancel", "cancelResponse", "Responses"),
        "Stop a response in the background",
        answer=ResponseResource,
        errors=STORE_ERRORS,
    ),
    Operation(
        *("GET", "/v1/responses/{response_id}/input_items", "listInputItems", "Responses"),
        "What a response answered",
        answer=ItemList,
        errors=STORE_ERRORS,
        query=PAGES,
    ),
    Operation(
        *("POST", "/v1/messages", "createMessage", "Messages"),
        "Answer a chat in Anthropic's form",
        request=MessagesRequest,
        answer=MessageResponse,
        events=(("MessageStreamEvent", MessageStreamEvent), FILE_EVENT),
        errors=(*BODY_ERRORS, *ENGINE_ERRORS, *FILE_ERRORS, *SESSION_ERRORS),
        error=MessagesError,
    ),
    Operation(
        *("POST", "/v1/messages/count_tokens", "countTokens", "Messages"),
        "Count the tokens of a prompt",
        request=MessagesRequest,
        answer=CountTokensResponse,
        errors=(*BODY_ERRORS, *ENGINE_ERRORS, *FILE_ERRORS),
        error=MessagesError,
    ),
    Operation(
        *("GET", "/v1/files", "listFiles", "Files"),
        "All files",
        answer=FileList,
        errors=STORE_ERRORS,
        query=(*PAGES, Query("purpose", "Those of one purpose.", TEXT_VALUE)),
    ),
    Operation(
        *("POST", "/v1/files", "uploadFile", "Files"),
        "Store a file",
        request=FileUpload,
        request_media=FORM,
        answer=FileMetadata,
        errors=STORE_ERRORS,
    ),
    Operation(
        *("GET", "/v1/files/{file_id}", "getFile", "Files"),
        "What is known of a file",
        answer=FileMetadata,
        errors=STORE_ERRORS,
    ),
    Operation(
        *("DELETE", "/v1/files/{file_id}", "deleteFile", "Files"),
        "Delete a file",
        answer=FileDeleted,
        errors=STORE_ERRORS,
    ),
    Operation(
        *("GET", "/v1/files/{file_id}/content", "getFileContent", "Files"),
        "The body of a file",
        media="*/*",
        errors=STORE_ERRORS,
    ),
    Operation(
        *("GET", "/v1/containers/{container_id}/files", "listContainerFiles", "Files"),
        "The files of a container",
        answer=ContainerFileList,
        errors=STORE_ERRORS,
        query=PAGES,
    ),
    Operation(
        *("GET", "/v1/containers/{container_id}/files/{file_id}", "getContainerFile", "Files"),
        "What is known of a file, whatever its container",
        answer=ContainerFileMetadata,
        errors=STORE_ERRORS,
    ),
    Operation(
        "GET",
        "/v1/containers/{container_id}/files/{file_id}/content",
        *("getContainerFileContent", "Files"),
        "The body of a file, whatever its container",
        media="*/*",
        errors=STORE_ERRORS,
    ),
    Operation(
        *("GET", "/v1/sessions/{session_id:any}", "exportSession", "Sessions"),
        "Export a session",
        answer=SerializedSession,
        errors=STORE_ERRORS,
    ),
    Operation(
        *("PUT", "/v1/sessions/{session_id:any}", "importSession", "Sessions"),
        "Import a session, in place of one with this id",
        request=ImportedSession,
        media=None,
        errors=STORE_ERRORS,
    ),
    Operation(
        *("DELETE", "/v1/sessions/{session_id:any}", "deleteSession", "Sessions"),
        "Delete a session, if there is one",
        media=None,
        errors=STORE_ERRORS,
    ),
    Operation(
        *("GET", "/v1/skills", "listSkills", "Skills"),
        "All skills; in Anthropic's form for its headers",
        answer=(SkillList, AnthropicSkillList),
        errors=STORE_ERRORS,
        query=(*ANTHROPIC_PAGES, Query("source", "`custom` for all.", TEXT_VALUE)),
    ),
    Operation(
        *("POST", "/v1/skills", "createSkill", "Skills"),
        "Upload a skill",
        request=SkillUpload,
        request_media=FORM,
        answer=(SkillObject, AnthropicSkill),
        errors=STORE_ERRORS,
    ),
    Operation(
        *("GET", "/v1/skills/{skill_id}", "getSkill", "Skills"),
        "One skill",
        answer=(SkillObject, AnthropicSkill),
        errors=STORE_ERRORS,
    ),
    Operation(
        *("DELETE", "/v1/skills/{skill_id}", "deleteSkill", "Skills"),
        "Delete a skill with all its versions",
        answer=(SkillDeleted, AnthropicSkillDeleted),
        errors=STORE_ERRORS,
    ),
    Operation(
        *("GET", "/v1/skills/{skill_id}/versions/{version}", "getSkillVersion", "Skills"),
        "A version of a skill, by its number, its id or `latest`",
        answer=(SkillVersionObject, AnthropicSkillVersion),
        errors=STORE_ERRORS,
    ),
    Operation(
        *("DELETE", "/v1/skills/{skill_id}/versions/{version}", "deleteSkillVersion", "Skills"),
        "Delete a version of a skill; 409 for the only one",
        answer=(SkillVersionDeleted, AnthropicSkillVersionDeleted),
        errors=(*STORE_ERRORS, 409),
    ),
    Operation(
        *("GET", "/v1/skills/{skill_id}/versions", "listSkillVersions", "Skills"),
        "The versions of a skill",
        answer=SkillVersionList,
        errors=STORE_ERRORS,
        query=ANTHROPIC_PAGES,
    ),
    Operation(
        *("POST", "/v1/skills/{skill_id}/versions", "addSkillVersion", "Skills"),
        "Upload a version of a skill",
        request=SkillUpload,
        request_media=FORM,
        answer=(SkillVersionObject, AnthropicSkillVersion),
        errors=STORE_ERRORS,
    ),
    Operation(
        *("POST", "/v1/agent/approvals/{approval_id}", "decideApproval", "Agent"),
        "Allow or deny what an answer waits for",
        request=ApprovalDecisionRequest,
        answer=ApprovalDecisionResponse,
        errors=STORE_ERRORS,
        error=(ApprovalDecisionResponse, ErrorEnvelope),
    ),
    Operation(
        *("GET", "/v1/models", "listModels", "Models"),
        "The models and their status",
        answer=ModelObjects,
        errors=(400,),
        query=CARD_PAGES,
    ),
    Operation(
        *("GET", "/v1/lora_adapters", "listAdapters", "Models"),
        "The adapters of a model, which the query may name; 409 where it has no LoRA runtime",
        answer=LoraAdapterList,
        errors=(404, 409),
        query=(Query("model", "Absent: the default.", TEXT_VALUE),),
    ),
    Operation(
        *("POST", "/v1/load_lora_adapter", "loadAdapter", "Models"),
        "LoRA adapter loaded. Only there where the server lets clients load adapters",
        request=LoadLoraAdapterRequest,
        answer=LoraAdapterObject,
        errors=ADAPTER_ERRORS,
    ),
    Operation(
        *("POST", "/v1/unload_lora_adapter", "unloadAdapter", "Models"),
        "LoRA adapter unloaded; running requests keep it. Only there where clients may load them",
        request=UnloadLoraAdapterRequest,
        answer=LoraAdapterObject,
        errors=ADAPTER_ERRORS,
    ),
    Operation(
        *("POST", "/v1/models/reload", "reloadModel", "Models"),
        "Load an unloaded model; answers when it serves",
        request=ModelOperationRequest,
        answer=ModelStatusResponse,
        errors=(*BODY_ERRORS, 404, 503),
    ),
    Operation(
        *("POST", "/v1/models/status", "modelStatus", "Models"),
        "Whether a model is loaded",
        request=ModelOperationRequest,
        answer=ModelStatusResponse,
        errors=(*BODY_ERRORS, 404),
    ),
    Operation(
        *("POST", "/v1/models/tune", "tuneModel", "Models"),
        "Settings for a model; 409 where weights are not quantized while they are loaded",
        request=TuneModelRequest,
        answer=dict[str, Any],
        errors=(*BODY_ERRORS, 404, 409),
    ),
    Operation(
        *("POST", "/v1/models/unload", "unloadModel", "Models"),
        "Unload a model; answers when running answers have finished and its memory is free",
        request=ModelOperationRequest,
        answer=ModelStatusResponse,
        errors=(*BODY_ERRORS, 404),
    ),
    Operation(
        *("GET", "/v1/models/{model:path}", "getModel", "Models"),
        "One model",
        answer=ModelObject,
        errors=(404,),
    ),
    Operation(
        *("POST", "/v1/system/doctor", "diagnose", "Operation"),
        "Checks of the machine; that one fails is in its `status`",
        answer=Diagnosis,
    ),
    Operation(
        *("GET", "/v1/system/info", "systemInfo", "Operation"),
        "The machine and the build",
        answer=SystemInfo,
    ),
    Operation(
        *("GET", "/health", "health", "Operation"),
        "200 while the server is up, whatever its models do",
        media=TEXT,
    ),
    Operation(*("GET", "/", "root", "Operation"), "The same as `/health`", media=TEXT),
    Operation(
        *("GET", "/metrics", "metrics", "Operation"),
        "Metrics in Prometheus' text format",
        media=TEXT,
        errors=(503,),
        error=None,
    ),
    Operation(
        *("GET", "/docs", "docs", "Operation"), "The interactive explorer", media="text/html"
    ),
    Operation(
        *("GET", "/docs/{asset:path}", "docsAsset", "Operation"),
        "A file of the explorer",
        media="*/*",
        errors=(404,),
    ),
    Operation(
        *("GET", "/api-doc/openapi.json", "openapi", "Operation"), "This description", media=JSON
    ),
)
