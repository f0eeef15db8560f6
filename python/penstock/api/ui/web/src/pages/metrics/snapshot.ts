/** The metrics of one moment, and the figures of the time between two. */

import { between, type Histogram, histogramOf, quantile } from "./histogram";
import { type Samples, sumOf } from "./parse";

/** The names of counters and gauges in `/metrics`. Counters only grow while the server lives. */
const NAMES = {
  running: "service_sequences_running",
  waiting: "service_sequences_waiting",
  capacity: "service_sequences_capacity",
  kvUsed: "service_kv_cache_blocks_used",
  kvTotal: "service_kv_cache_blocks_total",
  hostUsed: "service_host_cache_blocks_used",
  hostTotal: "service_host_cache_blocks_total",
  processed: "service_tokens_processed_total",
  generated: "service_tokens_generated_total",
  lookups: "service_prefix_cache_lookups_total",
  hits: "service_prefix_cache_hits_total",
  evictions: "service_prefix_cache_evictions_total",
  preemptions: "service_paged_preemptions_total",
  rejected: "service_sequences_rejected_total",
  completed: "service_sequences_completed_total",
  drafted: "service_speculation_drafted_tokens_total",
  accepted: "service_speculation_confirmed_tokens_total",
  encoderBytes: "service_encoder_cache_bytes",
  encoderHits: "service_encoder_cache_hits_total",
  encoderMisses: "service_encoder_cache_misses_total",
  encoded: "service_media_items_encoded_total",
  requests: "http_requests_total",
} as const;

type Values = Record<keyof typeof NAMES, number>;

export interface Snapshot extends Values {
  /** Seconds, from any clock that only grows. */
  time: number;
  /** Unix seconds. */
  at: number;
  /** Whether all engines answered; if not, their figures are missing. */
  up: boolean;
  /** HTTP requests whose status is 400 or higher. */
  failed: number;
  firstToken: Histogram;
  interToken: Histogram;
}

/** The figures that are plotted. Null: unknown, or nothing happened from which to compute it. */
export interface Point {
  time: number;
  at: number;
  running: number | null;
  waiting: number | null;
  kv: number | null;
  host: number | null;
  hitRate: number | null;
  generated: number | null;
  read: number | null;
  succeeded: number | null;
  failed: number | null;
  firstToken: Percentiles;
  interToken: Percentiles;
  acceptance: number | null;
  drafted: number | null;
  encoderHitRate: number | null;
  encoderBytes: number | null;
}

/** Seconds. */
export type Percentiles = readonly [p50: number | null, p90: number | null, p99: number | null];

const QUANTILES = [0.5, 0.9, 0.99];

export function snapshotOf(samples: Samples, time: number, at: number): Snapshot {
  const values = Object.fromEntries(
    Object.entries(NAMES).map(([key, name]) => [key, sumOf(samples, name)]),
  ) as Values;
  return {
    ...values,
    time,
    at,
    up: sumOf(samples, "service_engine_up") > 0,
    failed: sumOf(samples, NAMES.requests, ({ status }) => Number(status) >= 400),
    firstToken: histogramOf(samples, "service_time_to_first_token_seconds"),
    interToken: histogramOf(samples, "service_inter_token_latency_seconds"),
  };
}

/**
 * Return the figures of a moment. `before`: the snapshot before it, for rates; `earlier`: one from
 * half a minute before, for shares and percentiles, which need several events.
 */
export function pointOf(after: Snapshot, before: Snapshot, earlier: Snapshot): Point {
  const engine = (value: number | null) => (after.up ? value : null);
  const rates = (...keys: (keyof Values | "failed")[]) => keys.map((k) => rate(before, after, k));
  const grown = (key: keyof Values) => growth(earlier, after, key);
  const [processed, generated, drafted] =
    after.up && before.up ? rates("processed", "generated", "drafted") : [];
  const [requests, failed] = rates("requests", "failed");
  const up = after.up && earlier.up;
  return {
    time: after.time,
    at: after.at,
    running: engine(after.running),
    waiting: engine(after.waiting),
    kv: engine(share(after.kvUsed, after.kvTotal)),
    host: engine(share(after.hostUsed, after.hostTotal)),
    hitRate: up ? share(grown("hits"), grown("lookups")) : null,
    generated: generated ?? null,
    read:
      isKnown(processed) && isKnown(generated) && isKnown(drafted)
        ? Math.max(0, processed - generated - drafted)
        : null,
    succeeded: isKnown(requests) && isKnown(failed) ? requests - failed : null,
    failed: failed ?? null,
    firstToken: percentiles(earlier.firstToken, after.firstToken),
    interToken: percentiles(earlier.interToken, after.interToken),
    acceptance: up ? share(grown("accepted"), grown("drafted")) : null,
    drafted: drafted ?? null,
    encoderHitRate: up
      ? share(grown("encoderHits"), sum(grown("encoderHits"), grown("encoderMisses")))
      : null,
    encoderBytes: engine(after.encoderBytes),
  };
}

function isKnown(value: number | null | undefined): value is number {
  return typeof value === "number";
}

function sum(a: number | null, b: number | null): number | null {
  return a === null || b === null ? null : a + b;
}

/** Return the growth of a counter; null if it fell, because the server or an engine restarted. */
function growth(before: Snapshot, after: Snapshot, key: keyof Values | "failed"): number | null {
  const grown = after[key] - before[key];
  return grown < 0 ? null : grown;
}

function rate(before: Snapshot, after: Snapshot, key: keyof Values | "failed"): number | null {
  const grown = growth(before, after, key);
  const seconds = after.time - before.time;
  return grown === null || seconds <= 0 ? null : grown / seconds;
}

function share(part: number | null, whole: number | null): number | null {
  return part === null || whole === null || whole === 0 ? null : part / whole;
}

function percentiles(before: Histogram, after: Histogram): Percentiles {
  const values = between(before, after);
  const [p50 = null, p90 = null, p99 = null] = QUANTILES.map((wanted) =>
    values === null ? null : quantile(values, wanted),
  );
  return [p50, p90, p99];
}
