"""What answers for a model on disk."""

from __future__ import annotations

from penstock.adapters.view import AdapterView
from penstock.agent.embedding_loop import EmbeddingLoop
from penstock.agent.loop import AgentLoop, FileAttachments
from penstock.agent.rerank_loop import RerankLoop
from penstock.agent.sessions import SessionStore
from penstock.dialog import Sampling
from penstock.engine.protocol import Engine
from penstock.generation import Generator
from penstock.generation.embeddings.embeddings import EmbeddingRunner
from penstock.generation.embeddings.reranking import RerankRunner
from penstock.models.embedding.rerankers import is_reranker, load_rerank_parts
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import (
    is_embedding_model,
    load_embedding_parts,
    load_text_parts,
)
from penstock.models.loader.sampling_defaults import sampling_defaults

Runner = Generator | EmbeddingRunner | RerankRunner
Loop = AgentLoop | EmbeddingLoop | RerankLoop


def load_runner(
    files: ModelFiles,
    engine: Engine,
    tool_syntax: str | None = None,
    adapters: AdapterView | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008
) -> Runner:
    """For an engine that serves, or will serve, the same model. `adapters`: those that requests may
    name. `sampling`: the operator's defaults, over the model's. Raises ModelError."""
    if is_reranker(files):
        return RerankRunner.load(engine, load_rerank_parts(files), adapters)
    if is_embedding_model(files):
        return EmbeddingRunner.load(engine, load_embedding_parts(files), adapters)
    parts = load_text_parts(files)
    defaults = sampling_defaults(files, parts.generation_defaults, sampling)
    return Generator.load(engine, parts, tool_syntax, adapters, defaults)


def loop_over(
    runner: Runner,
    attachments: FileAttachments | None = None,
    *,
    sessions: SessionStore | None = None,
) -> Loop:
    """The loop around a runner; what is kept between requests is as of AgentLoop."""
    if isinstance(runner, RerankRunner):
        return RerankLoop(runner)
    if isinstance(runner, EmbeddingRunner):
        return EmbeddingLoop(runner)
    return AgentLoop(runner, attachments, sessions=sessions)


def load_loop(
    files: ModelFiles,
    engine: Engine,
    tool_syntax: str | None = None,
    adapters: AdapterView | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008
) -> Loop:
    """A loop that keeps nothing between requests. Raises ModelError."""
    return loop_over(load_runner(files, engine, tool_syntax, adapters, sampling))
