"""Loads a model and creates the core of its engine, whichever kind of model it is."""

from __future__ import annotations

import logging

from penstock.config import EngineSettings
from penstock.engine.core import EngineCore
from penstock.engine.embedding_core import EmbeddingCore
from penstock.engine.image_maker import ImageMaker
from penstock.engine.load_progress import LoadProgress
from penstock.engine.media_core import MediaCore
from penstock.engine.protocol import Core
from penstock.engine.speech_maker import SpeechMaker
from penstock.models.decoder.decoder import Progress
from penstock.models.hub.in_use import mark_in_use
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_kind import model_kind
from penstock.runtime.images.load import load_image_model
from penstock.runtime.load import (
    find_files,
    start_embedding,
    start_runtime,
    start_transcription,
)
from penstock.runtime.speech.load import load_speaker

log = logging.getLogger(__name__)


def load_core(settings: EngineSettings, limit_bytes: int | None = None) -> Core:
    """Load the model that `settings` names and return its core. `limit_bytes`: most memory to plan
    with, None for all that is available. Raises ModelError."""
    files, available = find_files(settings, limit_bytes=limit_bytes)
    with LoadProgress() as bar:
        core = _load(files, settings, available, bar.update)
    mark_in_use(files, core)
    asked, served = settings.max_model_len, core.info.max_model_len
    if asked is not None and 0 < served < asked:
        log.warning("a context of %d tokens was asked for; the model has %d", asked, served)
    return core


def _load(
    files: ModelFiles, settings: EngineSettings, available: int | None, progress: Progress
) -> Core:
    match model_kind(files):
        case "reranker" | "embedding":
            embedding = start_embedding(files, settings, available, progress)
            return EmbeddingCore.for_runtime(embedding, settings)
        case "text":
            runtime = start_runtime(files, settings, available, progress)
            return EngineCore.for_runtime(runtime, settings)
        case "transcription":
            transcription = start_transcription(files, settings, available, progress)
            return EngineCore.for_runtime(transcription, settings)
        case "speech":
            speaker = load_speaker(files, settings, available)
            return MediaCore(SpeechMaker(speaker), settings.max_queue)
        case "image":
            painter = load_image_model(files, settings, available)
            return MediaCore(ImageMaker(painter), settings.max_queue)
