"""Entries of the route table: text, embeddings, images, speech and reranking."""

from __future__ import annotations

from typing import Any, Final

from penstock.api.codecs.chat import ChatDialect
from penstock.api.codecs.completions import CompletionsDialect
from penstock.api.route_table.operation import (
    ANY_MEDIA,
    BODY_ERRORS,
    ENGINE_ERRORS,
    FILE_ERRORS,
    SESSION_ERRORS,
    Operation,
)
from penstock.api.routes.embeddings import EmbeddingEndpoint
from penstock.api.routes.generate import GenerateEndpoint
from penstock.api.routes.images import ImageEndpoint
from penstock.api.routes.reranking import RerankEndpoint
from penstock.api.routes.speech import SpeechEndpoint
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
from penstock.api.schema.images import ImageGenerationRequest, ImageGenerationResponse
from penstock.api.schema.reranking import RerankRequest, RerankResponse
from penstock.api.schema.speech import SpeechRequest

TAG: Final = "Inference"
# Error statuses of a request whose images are stored: the disk is full.
IMAGE_STORE_ERRORS: Final = (507,)
QUESTION: Final = "Name three rivers of Europe."
RANKED: Final[dict[str, Any]] = {
    "model": "default",
    "query": "a river",
    "documents": ["the Rhine", "the Alps"],
}
# Path -> operation id. All paths are the same operation: different reranking services use different
# paths.
RERANK_PATHS: Final = {
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerankV2",
    "/rerank": "rerankUnversioned",
}

OPERATIONS: Final = (
    Operation(
        "POST /v1/chat/completions",
        lambda services: GenerateEndpoint(services, ChatDialect()),
        id="createChatCompletion",
        tag=TAG,
        summary="Create a chat completion (OpenAI Chat Completions)",
        request=ChatCompletionRequest,
        example={
            "model": "default",
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 64,
        },
        response=ChatCompletionResponse,
        events=(
            ("ChatCompletionChunkResponse", ChatCompletionChunkResponse),
            ("AgenticToolCallProgress", AgenticToolCallProgress),
            ("AgenticToolApprovalRequired", AgenticToolApprovalRequired),
            ("FileObject", FileObject),
        ),
        errors=(*BODY_ERRORS, *ENGINE_ERRORS, *FILE_ERRORS, *SESSION_ERRORS),
    ),
    Operation(
        "POST /v1/completions",
        lambda services: GenerateEndpoint(services, CompletionsDialect()),
        id="createCompletion",
        tag=TAG,
        summary="Complete a text (OpenAI Completions)",
        request=CompletionRequest,
        example={"model": "default", "prompt": "The rivers of Europe", "max_tokens": 64},
        response=CompletionResponse,
        events=(("CompletionChunkResponse", CompletionChunkResponse),),
        errors=(*BODY_ERRORS, *ENGINE_ERRORS),
    ),
    Operation(
        "POST /v1/embeddings",
        EmbeddingEndpoint,
        id="createEmbedding",
        tag=TAG,
        summary="Embed texts and images (OpenAI Embeddings)",
        request=EmbeddingRequest,
        example={"model": "default", "input": ["a river", "a mountain"]},
        response=EmbeddingResponse,
        errors=(*BODY_ERRORS, *ENGINE_ERRORS),
    ),
    Operation(
        "POST /v1/images/generations",
        ImageEndpoint,
        id="createImage",
        tag=TAG,
        summary="Make images from a prompt (OpenAI Images)",
        request=ImageGenerationRequest,
        example={"model": "default", "prompt": "a river", "response_format": "Url"},
        response=ImageGenerationResponse,
        errors=(*BODY_ERRORS, *ENGINE_ERRORS, *IMAGE_STORE_ERRORS),
    ),
    Operation(
        "POST /v1/audio/speech",
        SpeechEndpoint,
        id="createSpeech",
        tag=TAG,
        summary="Speak a text (OpenAI Speech)",
        request=SpeechRequest,
        example={"model": "default", "input": "The Rhine flows north.", "response_format": "wav"},
        media=ANY_MEDIA,
        errors=(*BODY_ERRORS, *ENGINE_ERRORS),
    ),
    *(
        Operation(
            f"POST {path}",
            RerankEndpoint,
            id=id,
            tag=TAG,
            summary="Rank documents by their relevance to a query",
            request=RerankRequest,
            example=RANKED,
            response=RerankResponse,
            errors=(*BODY_ERRORS, *ENGINE_ERRORS),
        )
        for path, id in RERANK_PATHS.items()
    ),
)
