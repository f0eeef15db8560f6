"""What answers for a model that reranks."""

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
from penstock.engine.types import RANKING_ALONE
from penstock.generation.embeddings.reranking import RerankRunner


class RerankLoop:
    """Reranks; has one clear answer to every other request."""

    def __init__(self, runner: RerankRunner) -> None:
        self._runner = runner

    def close(self) -> None:
        """Nothing was started beside the engine."""

    async def run(
        self, request: GenerateRequest, outlet: Outlet | None = None
    ) -> AsyncGenerator[Event, None]:
        """RunFailed with status 400, whatever is asked."""
        yield failure(_refusal())

    async def attach(self, request: GenerateRequest) -> GenerateRequest:
        """The request as it is: nothing of it will be read."""
        return request

    async def count(self, request: GenerateRequest) -> int:
        """Raises InvalidRequest."""
        raise _refusal()

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Raises InvalidRequest."""
        raise _refusal()

    async def rerank(self, request: RerankRequest) -> Ranking:
        """See `RerankRunner.rerank`."""
        return await self._runner.rerank(request)


def _refusal() -> InvalidRequest:
    return InvalidRequest(RANKING_ALONE, field="model", code="unsupported_model")
