"""Loads a model and creates the core of its engine, for text, embeddings or reranking."""

from __future__ import annotations

import logging

from penstock.config import EngineSettings
from penstock.engine.core import EngineCore
from penstock.engine.embedding_core import EmbeddingCore
from penstock.engine.load_progress import LoadProgress
from penstock.engine.protocol import Core
from penstock.models.embedding.rerankers import is_reranker
from penstock.models.loader.image_embedder import is_image_embedder
from penstock.models.loader.model_loader import is_embedding_model
from penstock.runtime.load import find_files, start_embedding, start_runtime

log = logging.getLogger(__name__)


def load_core(settings: EngineSettings, limit_bytes: int | None = None) -> Core:
    """Load the model that `settings` names and return its core. `limit_bytes`: most memory to plan
    with, None for all that is available. Raises ModelError."""
    files, available = find_files(settings, limit_bytes=limit_bytes)
    core: Core
    with LoadProgress() as bar:
        if is_reranker(files) or is_embedding_model(files) or is_image_embedder(files):
            embedding = start_embedding(files, settings, available, bar.update)
            core = EmbeddingCore.for_runtime(embedding, settings)
        else:
            runtime = start_runtime(files, settings, available, bar.update)
            core = EngineCore.for_runtime(runtime, settings)
    asked, served = settings.max_model_len, core.info.max_model_len
    if asked is not None and served < asked:
        log.warning("a context of %d tokens was asked for; the model has %d", asked, served)
    return core
