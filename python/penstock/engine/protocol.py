"""What an engine is to its callers, wherever it runs: in a thread, in a process, on a machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from penstock.engine.types import EngineGauges, EngineInfo, TokenChunk, TokenRequest
from penstock.models.vocabulary import Vocabulary


class Engine(Protocol):
    """All methods are called from one asyncio loop."""

    @property
    def info(self) -> EngineInfo: ...

    def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """The chunks of one request, the last with `finish`.

        Closing the iterator early (`aclose`, cancellation) aborts the request and frees its row.
        Raises Overloaded when the queue is full, Unavailable while the engine (re)starts,
        EngineFault when the engine process died under the request.
        """
        ...

    def teach(self, vocabulary: Vocabulary) -> None:
        """Tell the engine the model's tokenizer, before the first request with a constraint.
        Harmless when told twice; an engine that was restarted is told again by itself."""
        ...

    async def gauges(self) -> EngineGauges: ...
