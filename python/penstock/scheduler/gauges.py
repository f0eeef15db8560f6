"""Counters and gauges of the scheduler."""

from __future__ import annotations

import msgspec


class SchedulerGauges(msgspec.Struct):
    """A snapshot of the scheduler's gauges and counters, with the names of `EngineGauges`. Counters
    only grow.

    `tokens_processed`: tokens that steps computed, of prompts, answers and drafts.
    `prefix_cache_lookups`: admissions while prefix caching is on.
    `prefix_cache_hits`: lookups that found at least one block.
    `prefix_cache_evictions`: published blocks that were overwritten.
    `host_cache_saves`, `host_cache_restores`: blocks copied to and from the CPU KV cache.
    `state_snapshots_used`, `state_snapshots_total`: slots for snapshots of recurrent states; 0
    without recurrent layers.
    `state_snapshot_saves`, `state_snapshot_restores`: snapshots saved, and prefixes that started
    from one.
    `state_snapshot_evictions`: snapshots lost to other sequences or with their KV block.
    """

    sequences_running: int
    sequences_waiting: int
    sequences_capacity: int
    kv_cache_blocks_used: int
    kv_cache_blocks_total: int
    tokens_processed: int
    prefix_cache_lookups: int
    prefix_cache_hits: int
    prefix_cache_evictions: int
    preemptions: int
    completed_stop: int
    completed_length: int
    completed_abort: int
    completed_error: int
    generated_tokens: int
    forced_tokens: int
    draft_tokens: int
    accepted_tokens: int
    ngram_draft_tokens: int
    ngram_accepted_tokens: int
    draft_model_draft_tokens: int
    draft_model_accepted_tokens: int
    mtp_draft_tokens: int
    mtp_accepted_tokens: int
    draft_seconds: float
    host_cache_blocks_used: int
    host_cache_blocks_total: int
    host_cache_saves: int
    host_cache_restores: int
    state_snapshots_used: int
    state_snapshots_total: int
    state_snapshot_saves: int
    state_snapshot_restores: int
    state_snapshot_evictions: int
