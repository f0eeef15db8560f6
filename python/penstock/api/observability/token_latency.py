"""Takes token latencies where the tokens are made: at the steps of the engine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from typing import Final

from penstock._native import Lane, StepTimes
from penstock.api.observability.metrics import INTER_TOKEN_BUCKETS, Metrics, TokenHistogram
from penstock.api.observability.request_record import RequestRecord, current_record
from penstock.base.errors import Overloaded, ServiceError
from penstock.engine.protocol import Engine, Tap
from penstock.engine.types import (
    AdapterSource,
    AdapterState,
    EmbedOutput,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    TokenOutput,
    TokenRequest,
)
from penstock.grammar.vocabulary import Vocabulary

HELD_S: Final = 0.25
"""So much of the time of a sequence may be missing in `/metrics`."""


class MeasuredEngine:
    """An Engine that observes the chunks of another one, for the HTTP request of the task: for
    its record, which the access log shows, and for `metrics`, if there are any.

    Keep-alives, withheld text and frames do not count; the clock is `step_time_s`. The metrics
    observe streams only: without a stream nobody sees a first token.
    """

    def __init__(self, engine: Engine, metrics: Metrics | None) -> None:
        self._engine = engine
        self._metrics = metrics

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        self._engine.set_tokenizer(vocabulary)

    async def add_adapter(self, source: AdapterSource) -> AdapterState:
        return await self._engine.add_adapter(source)

    async def retire_adapter(self, revision: str) -> None:
        await self._engine.retire_adapter(revision)

    async def adapters(self) -> tuple[AdapterState, ...]:
        return await self._engine.adapters()

    async def gauges(self) -> EngineGauges:
        return await self._engine.gauges()

    async def embed(self, request: EmbedRequest) -> AsyncIterator[EmbedOutput]:
        """Yields what the engine yields, unchanged."""
        async with aclosing(self._engine.embed(request)) as chunks:  # type: ignore[type-var]
            with self._rejections():
                async for chunk in chunks:
                    yield chunk

    async def generate(
        self, request: TokenRequest, tap: Tap | None = None
    ) -> AsyncIterator[TokenOutput]:
        """Yields what the engine yields, unchanged."""
        record = current_record.get()
        latency = None if record is None else _Latency(record, self._metrics)
        if tap is not None and latency is not None:
            tap = _ObservedTap(tap, latency)
        # The Protocol says AsyncIterator; every engine gives a generator, which aclose() aborts.
        generated = self._engine.generate(request, tap)
        async with aclosing(generated) as chunks:  # type: ignore[type-var]
            try:
                with self._rejections():
                    async for chunk in chunks:
                        if latency is not None and chunk.tokens:
                            latency.observe(chunk)
                        yield chunk
            finally:
                if latency is not None:
                    latency.flush()

    @contextmanager
    def _rejections(self) -> Iterator[None]:
        try:
            yield
        except ServiceError as error:
            if error.status == Overloaded.status and self._metrics is not None:
                self._metrics.rejected.inc()
            raise


class _Latency:
    """Of one sequence of a request. What is between tokens is counted here and added to the metric
    now and then, and at the end."""

    __slots__ = ("_begun", "_between", "_counts", "_last_s", "_metrics", "_record", "_total_s")

    def __init__(self, record: RequestRecord, metrics: Metrics | None) -> None:
        self._record = record
        self._metrics = metrics
        self._begun = False
        self._between: TokenHistogram | None = None  # once there was a token to be seen
        self._counts = [0] * (len(INTER_TOKEN_BUCKETS) + 1)
        self._total_s = 0.0
        self._last_s = 0.0

    def times(self) -> StepTimes | None:
        """Observes in place of this until `take`; None before the first token."""
        if not self._begun:
            return None
        self.flush()
        add = _drop if self._between is None else self._between.add
        return StepTimes(INTER_TOKEN_BUCKETS, self._last_s, HELD_S, add)

    def take(self, times: StepTimes) -> None:
        """Go on after `times`."""
        times.flush()
        if times.num_tokens:
            self._record.completion_tokens += times.num_tokens
            self._record.last_token_s = self._last_s = times.last_s

    def observe(self, chunk: TokenOutput) -> None:
        """The tokens of one step, or of several that were joined."""
        record, num_tokens, now_s = self._record, len(chunk.tokens), chunk.step_time_s
        record.completion_tokens += num_tokens
        record.last_token_s = now_s
        if self._between is not None:
            passed_s = now_s - self._last_s
            self._total_s += passed_s
            self._counts[bisect_left(INTER_TOKEN_BUCKETS, passed_s / num_tokens)] += num_tokens
            if self._total_s >= HELD_S:
                self.flush()
        elif not self._begun:
            self._begin(now_s if chunk.first_step_time_s is None else chunk.first_step_time_s)
        self._last_s = now_s

    def flush(self) -> None:
        """Add what was counted to the metric."""
        if self._between is not None:
            self._between.add(self._counts, self._total_s)
            self._counts = [0] * len(self._counts)
            self._total_s = 0.0

    def _begin(self, now_s: float) -> None:
        record, metrics = self._record, self._metrics
        self._begun = True
        if record.streaming and metrics is not None:
            # An open stream's status is settled before its first token.
            labels = (record.method, record.route, record.model, str(HTTPStatus.OK.value))
            self._between = metrics.inter_token.labels(*labels)
            if record.first_token_s is None:
                waited_s = max(0.0, now_s - record.started_s)
                metrics.first_token.labels(*labels).observe(waited_s)
        if record.first_token_s is None:
            record.first_token_s = now_s


def _drop(counts: Sequence[int], total_s: float) -> None:
    """There are no metrics to add to."""


class _ObservedTap:
    """`engine.Tap`: observes what another one takes."""

    __slots__ = ("_latency", "_tap", "_times")

    def __init__(self, tap: Tap, latency: _Latency) -> None:
        self._tap = tap
        self._latency = latency
        self._times: StepTimes | None = None

    def __call__(self, chunk: TokenOutput) -> TokenOutput | None:
        rest = self._tap(chunk)
        if rest is not chunk:
            self._latency.observe(chunk)
        return rest

    def lane(self) -> Lane | None:
        lane = self._tap.lane()
        self._times = None if lane is None else self._latency.times()
        if lane is not None and self._times is not None:
            lane.time(self._times)
        return lane

    def leave(self) -> None:
        self._tap.leave()
        if self._times is not None:
            self._latency.take(self._times)
