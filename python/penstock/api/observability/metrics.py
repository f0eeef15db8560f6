"""The metrics of `GET /metrics`. HTTP metrics have labels, engine metrics have none.

If there are several API processes, each writes its metrics to files in a shared folder, and the
process that answers `GET /metrics` adds them up. This is prometheus-client's multiprocess mode; a
worker enables it by setting PROMETHEUS_MULTIPROC_DIR before it imports this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from penstock.api.observability.agent_observer import AgentMetrics
from penstock.api.observability.request_record import RequestRecord
from penstock.engine.types import EngineGauges

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LABELS: Final = ("method", "path", "model", "status")
DURATION_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200),
)
BODY_BUCKETS: Final = (
    *(128, 512, 1024, 4096, 16384, 65536, 262144),
    *(1048576, 4194304, 16777216, 52428800, 104857600),
)
FIRST_TOKEN_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
# vLLM's buckets start at 10 ms, but a small model generates faster than that even on a CPU.
INTER_TOKEN_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
# Name in /metrics (after `service_`) -> field of EngineGauges
ENGINE_GAUGES: Final = {
    "sequences_running": "sequences_running",
    "sequences_waiting": "sequences_waiting",
    "sequences_capacity": "sequences_capacity",
    "kv_cache_blocks_used": "kv_cache_blocks_used",
    "kv_cache_blocks_total": "kv_cache_blocks_total",
    "host_cache_blocks_used": "host_cache_blocks_used",
    "host_cache_blocks_total": "host_cache_blocks_total",
    "state_snapshots_used": "state_snapshots_used",
    "state_snapshots_total": "state_snapshots_total",
    "encoder_cache_bytes": "encoder_cache_bytes",
}
ENGINE_COUNTERS: Final = {
    "tokens_processed": "tokens_processed",
    "tokens_generated": "generated_tokens",
    "prefix_cache_lookups": "prefix_cache_lookups",
    "prefix_cache_hits": "prefix_cache_hits",
    "prefix_cache_evictions": "prefix_cache_evictions",
    "paged_preemptions": "preemptions",
    "sequences_completed_stop": "completed_stop",
    "sequences_completed_length": "completed_length",
    "sequences_completed_canceled": "completed_abort",
    "sequences_completed_error": "completed_error",
    "grammars_compiled": "grammars_compiled",
    "grammars_reused": "grammars_reused",
    "grammars_refused": "grammars_refused",
    "grammar_compile_seconds": "grammar_compile_seconds",
    "grammar_mask_seconds": "grammar_mask_seconds",
    "grammar_mask_wait_seconds": "grammar_mask_wait_seconds",
    "forced_tokens": "forced_tokens",
    "speculation_drafted_tokens": "draft_tokens",
    "speculation_confirmed_tokens": "accepted_tokens",
    "speculation_ngram_drafted_tokens": "ngram_draft_tokens",
    "speculation_ngram_confirmed_tokens": "ngram_accepted_tokens",
    "speculation_draft_model_drafted_tokens": "draft_model_draft_tokens",
    "speculation_draft_model_confirmed_tokens": "draft_model_accepted_tokens",
    "speculation_mtp_drafted_tokens": "mtp_draft_tokens",
    "speculation_mtp_confirmed_tokens": "mtp_accepted_tokens",
    "speculation_draft_seconds": "draft_seconds",
    "host_cache_saves": "host_cache_saves",
    "host_cache_restores": "host_cache_restores",
    "state_snapshot_saves": "state_snapshot_saves",
    "state_snapshot_restores": "state_snapshot_restores",
    "state_snapshot_evictions": "state_snapshot_evictions",
    "encoder_cache_hits": "encoder_cache_hits",
    "encoder_cache_misses": "encoder_cache_misses",
    "media_items_encoded": "media_items_encoded",
    "media_encode_seconds": "media_encode_seconds",
}


class TokenHistogram(Histogram):
    """A histogram that can add many values in one call, because there is one value per token."""

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add values that the caller has already sorted into buckets.

        `counts`: the number of values in each bucket, the infinite bucket last.
        `total`: the sum of the values, in the unit of the histogram.
        """
        self._sum.inc(total)
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)


class Metrics:
    """The metrics of this API process. `expose` reports the metrics of all processes.

    `multiprocess_dir`: the folder shared with the other API processes; None if there is only one.
    """

    def __init__(self, multiprocess_dir: str | None = None) -> None:
        self._multiprocess_dir = multiprocess_dir
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "http_requests_total", "Requests answered.", LABELS, registry=registry
        )
        self.duration = Histogram(
            "http_request_duration_seconds",
            "From the request's head to the last byte of its answer.",
            LABELS,
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "http_requests_in_flight",
            "Requests being served.",
            LABELS[:3],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.body_bytes = Histogram(
            "http_request_body_bytes",
            "Size of request bodies.",
            LABELS[:3],
            buckets=BODY_BUCKETS,
            registry=registry,
        )
        self.first_token = Histogram(
            "service_time_to_first_token_seconds",
            "From a streaming request's head to the engine step of its first token.",
            LABELS,
            buckets=FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self.inter_token = TokenHistogram(
            "service_inter_token_latency_seconds",
            "Between the engine steps of a streamed sequence, per token.",
            LABELS,
            buckets=INTER_TOKEN_BUCKETS,
            registry=registry,
        )
        # Caches the gauge of each combination of labels, to avoid the library's lock and checks.
        # The library keeps all these gauges too, so the cache adds no leak.
        self._in_flight = cache(self.in_flight.labels)
        self._requests = cache(self.requests.labels)
        self._duration = cache(self.duration.labels)
        self._body_bytes = cache(self.body_bytes.labels)
        self.agent = AgentMetrics(registry)
        self.rejected = Counter(
            "service_sequences_rejected_total",
            "Sequences not admitted because the queue was full.",
            registry=registry,
        )

    def request_started(self, record: RequestRecord) -> None:
        """Count a request as in flight. Its route and model are known by then."""
        self._in_flight(record.method, record.route, record.model).inc()

    def request_finished(self, record: RequestRecord, duration_s: float) -> None:
        """Count a request that has ended. It is then no longer in flight."""
        target = (record.method, record.route, record.model)
        labels = (*target, str(record.status))
        self._in_flight(*target).dec()
        self._requests(*labels).inc()
        self._duration(*labels).observe(duration_s)
        self._body_bytes(*target).observe(record.body_bytes)

    def expose(self, gauges: EngineGauges | None) -> bytes:
        """Return the text of `/metrics`. `gauges`: sums over all engines; None if an engine did not
        answer."""
        registry = self._registry
        if self._multiprocess_dir is not None:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, self._multiprocess_dir)  # type: ignore[no-untyped-call]
        engine = CollectorRegistry()
        engine.register(_EngineCollector(gauges))
        return generate_latest(registry) + generate_latest(engine)


class _EngineCollector:
    """Reports the values of EngineGauges as Prometheus metrics."""

    def __init__(self, gauges: EngineGauges | None) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        gauges = self._gauges
        up = float(gauges is not None)
        yield GaugeMetricFamily("service_engine_up", "Whether the engine answers.", value=up)
        if gauges is None:
            return
        for name, field in ENGINE_GAUGES.items():
            yield GaugeMetricFamily(
                f"service_{name}", _help_text(name), value=float(getattr(gauges, field))
            )
        for name, field in ENGINE_COUNTERS.items():
            yield CounterMetricFamily(
                f"service_{name}", _help_text(name), value=float(getattr(gauges, field))
            )
        completed = (
            gauges.completed_stop
            + gauges.completed_length
            + gauges.completed_abort
            + gauges.completed_error
        )
        yield CounterMetricFamily(
            "service_sequences_completed", "Sequences completed.", value=float(completed)
        )


def _help_text(name: str) -> str:
    return name.replace("_", " ").capitalize() + "."
