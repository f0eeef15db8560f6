"""Measures token latencies at engine steps, the moments at which tokens are generated."""

from __future__ import annotations

from bisect import bisect_left
from http import HTTPStatus
from typing import Final

from penstock.api.observability.metrics import INTER_TOKEN_BUCKETS, Metrics, TokenHistogram
from penstock.api.observability.request_record import RequestRecord, current_record
from penstock.base.errors import Overloaded, ServiceError
from penstock.engine.types import TokenOutput

HELD_S: Final = 0.25
"""Longest time in seconds for which token latencies may be missing in `/metrics`."""


class RequestObserver:
    """An `EngineObserver` that writes token counts and times to the record of the current HTTP
    request, for the access log, and to `metrics` if they are enabled.

    A token's time is `step_time_s`, the end of its engine step. Keep-alives, withheld text and the
    sending of frames have no influence. The metrics cover streams only, because a client sees a
    first token only in a stream.
    """

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics

    def sequence(self) -> _Latency | None:
        record = current_record.get()
        return None if record is None else _Latency(record, self._metrics)

    def failed(self, error: ServiceError) -> None:
        if error.status == Overloaded.status and self._metrics is not None:
            self._metrics.rejected.inc()


class _Latency:
    """The `SequenceObserver` of one sequence. It counts inter-token latencies and adds the counts
    to the metric every HELD_S seconds and at the end."""

    __slots__ = ("_between", "_counts", "_last_s", "_metrics", "_record", "_started", "_total_s")

    def __init__(self, record: RequestRecord, metrics: Metrics | None) -> None:
        self._record = record
        self._metrics = metrics
        self._started = False
        self._between: TokenHistogram | None = None  # set at the first token of a stream
        self._counts = [0] * (len(INTER_TOKEN_BUCKETS) + 1)
        self._total_s = 0.0
        self._last_s = 0.0

    def observe(self, output: TokenOutput) -> None:
        """Count the tokens of one engine step, or of several steps whose outputs were merged."""
        record, num_tokens, now_s = self._record, len(output.tokens), output.step_time_s
        if not num_tokens:
            return
        record.completion_tokens += num_tokens
        record.last_token_s = now_s
        if self._between is not None:
            passed_s = now_s - self._last_s
            self._total_s += passed_s
            self._counts[bisect_left(INTER_TOKEN_BUCKETS, passed_s / num_tokens)] += num_tokens
            if self._total_s >= HELD_S:
                self.flush()
        elif not self._started:
            self._begin(now_s if output.first_step_time_s is None else output.first_step_time_s)
        self._last_s = now_s

    def end(self) -> None:
        self.flush()

    def flush(self) -> None:
        """Add the latencies counted since the last flush to the metric."""
        if self._between is not None:
            self._between.add(self._counts, self._total_s)
            self._counts = [0] * len(self._counts)
            self._total_s = 0.0

    def _begin(self, now_s: float) -> None:
        record, metrics = self._record, self._metrics
        self._started = True
        if record.streaming and metrics is not None:
            # An open stream's status is settled before its first token.
            labels = (record.method, record.route, record.model, str(HTTPStatus.OK.value))
            self._between = metrics.inter_token.labels(*labels)
            if record.first_token_s is None:
                waited_s = max(0.0, now_s - record.started_s)
                metrics.first_token.labels(*labels).observe(waited_s)
        if record.first_token_s is None:
            record.first_token_s = now_s
