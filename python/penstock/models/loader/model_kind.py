"""Tells the kind of a model from its files."""

from __future__ import annotations

from typing import Literal, TypeAlias

from penstock.models.embedding.rerankers import is_reranker
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.image_embedder import is_image_embedder
from penstock.models.loader.model_loader import is_embedding_model
from penstock.models.speech.speech_files import is_transformers_speech
from penstock.models.whisper.folder import is_whisper_folder

ModelKind: TypeAlias = Literal["text", "embedding", "reranker", "transcription", "speech", "image"]


def model_kind(files: ModelFiles) -> ModelKind:
    """Return the kind of a model. Raises ModelError if the files cannot be read."""
    match files.kind:
        case "voice":
            return "speech"
        case "pipeline":
            return "image"
        case "folder" if is_transformers_speech(files.path):
            return "speech"
        case "folder" if is_whisper_folder(files.path):
            return "transcription"
        case "folder" | "gguf":
            if is_reranker(files):
                return "reranker"
            embeds = is_embedding_model(files) or is_image_embedder(files)
            return "embedding" if embeds else "text"
