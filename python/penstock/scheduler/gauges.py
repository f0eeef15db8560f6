"""Counters and gauges of the scheduler."""

from __future__ import annotations

import msgspec


class SchedulerGauges(msgspec.Struct):
    """A snapshot. Counters only grow. The names are those of `EngineGauges`.

    A lookup is an admission while prefix caching is on; a hit is a lookup that found at least one
    block; an eviction is a published block that was overwritten. `host_cache_saves` and
    `host_cache_restores` count the blocks copied to and from the CPU KV cache.
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
    forced_tokens: int
    draft_tokens: int
    accepted_tokens: int
    host_cache_blocks_used: int
    host_cache_blocks_total: int
    host_cache_saves: int
    host_cache_restores: int
