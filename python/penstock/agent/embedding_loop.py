"""What answers for a model that makes embeddings."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from penstock.agent.loop import failure
from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    EmbeddingRequest,
    Embeddings,
    Event,
    GenerateRequest,
    Outlet,
    Ranking,
    RerankRequest,
)
from penstock.engine.types import NO_RANKING, NO_TEXT
from penstock.generation.embeddings.embeddings import EmbeddingRunner


class EmbeddingLoop:
    """Embeds; has one clear answer to a request for text."""

    def __init__(self, runner: EmbeddingRunner) -> None:
        self._runner = runner

    def close(self) -> None:
        """Nothing was started beside the engine."""

    async def run(
        self, request: GenerateRequest, outlet: Outlet | None = None
    ) -> AsyncGenerator[Event, None]:
        """RunFailed with status 400, whatever is asked."""
        yield failure(InvalidRequest(NO_TEXT, field="model", code="unsupported_model"))

    async def attach(self, request: GenerateRequest) -> GenerateRequest:
        """The request as it is: nothing of it will be read."""
        return request

    async def count(self, request: GenerateRequest) -> int:
        """Raises InvalidRequest: there are no prompts of texts to write."""
        raise InvalidRequest(NO_TEXT, field="model", code="unsupported_model")

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """See `EmbeddingRunner.embed`."""
        return await self._runner.embed(request)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Raises InvalidRequest: one text is embedded at a time."""
        raise InvalidRequest(NO_RANKING, field="model", code="unsupported_model")
