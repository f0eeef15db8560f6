"""Takes token latencies where the tokens are made: at the steps of the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from http import HTTPStatus

from penstock.api.metrics import Metrics
from penstock.api.record import RequestRecord, current_record
from penstock.base.errors import Overloaded, ServiceError
from penstock.engine.protocol import Engine
from penstock.engine.types import EngineGauges, EngineInfo, TokenChunk, TokenRequest
from penstock.models.vocabulary import Vocabulary


class MeasuredEngine:
    """An Engine that observes the chunks of another one, for the HTTP request of the task.

    Keep-alives, withheld text and frames do not count; the clock is `step_time_s`. Only streaming
    requests are observed: without a stream nobody sees a first token.
    """

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def teach(self, vocabulary: Vocabulary) -> None:
        self._engine.teach(vocabulary)

    async def gauges(self) -> EngineGauges:
        return await self._engine.gauges()

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Yields what the engine yields, unchanged."""
        record = current_record.get()
        last_s: float | None = None
        # The Protocol says AsyncIterator; every engine gives a generator, which aclose() aborts.
        async with aclosing(self._engine.generate(request)) as chunks:  # type: ignore[type-var]
            try:
                async for chunk in chunks:
                    if record is not None and chunk.tokens:
                        self._observe(record, chunk, last_s)
                        last_s = chunk.step_time_s
                    yield chunk
            except ServiceError as error:
                if error.status == Overloaded.status:
                    self._metrics.rejected.inc()
                raise

    def _observe(self, record: RequestRecord, chunk: TokenChunk, last_s: float | None) -> None:
        now_s = chunk.step_time_s
        record.completion_tokens += len(chunk.tokens)
        record.last_token_s = now_s
        first = record.first_token_s is None
        if first:
            record.first_token_s = now_s
        if not record.streaming:
            return
        # An open stream's status is settled before its first token.
        labels = (record.method, record.route, record.model, str(HTTPStatus.OK.value))
        if first:
            self._metrics.first_token.labels(*labels).observe(max(0.0, now_s - record.started_s))
        if last_s is not None:
            share_s = (now_s - last_s) / len(chunk.tokens)
            histogram = self._metrics.inter_token.labels(*labels)
            for _ in chunk.tokens:
                histogram.observe(share_s)
