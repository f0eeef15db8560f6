"""From settings to a core that serves: one that writes text, or one that makes embeddings."""

from __future__ import annotations

from penstock.config import EngineSettings
from penstock.engine.core import EngineCore
from penstock.engine.embedding_core import EmbeddingCore
from penstock.engine.protocol import Core
from penstock.models.loading import is_embedding_model
from penstock.runtime.load import find_files, start_embedding, start_runtime


def load_core(settings: EngineSettings, limit_bytes: int | None = None) -> Core:
    """Load the model that `settings` names, within `limit_bytes` if given. Raises ModelError."""
    files, available = find_files(settings, limit_bytes=limit_bytes)
    if is_embedding_model(files):
        return EmbeddingCore.over(start_embedding(files, settings, available), settings)
    return EngineCore.over(start_runtime(files, settings, available), settings)
