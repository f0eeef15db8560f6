/** The plots of the metrics page. */

import { formatBytes, formatNumber, formatSeconds } from "../../ui/format";
import type { Series } from "./Chart.svelte";
import type { Percentiles, Point, Snapshot } from "./snapshot";

export interface Plot {
  title: string;
  series: readonly Series[];
  format: (value: number) => string;
  end?: number;
  least?: number;
  /** A sentence with the absolute figures. */
  note?: (now: Snapshot) => string;
  /** Whether the plot is shown; absent: always. */
  when?: (now: Snapshot) => boolean;
}

export const PLOTS: readonly Plot[] = [
  {
    title: "Tokens per second",
    series: [
      { name: "generated", value: (point) => point.generated },
      { name: "read", value: (point) => point.read },
    ],
    format: formatRate,
    note: (now) =>
      `${count(now.generated)} generated since the start. Read: prompts without cached parts.`,
  },
  {
    title: "Sequences",
    series: [
      { name: "running", value: (point) => point.running },
      { name: "waiting", value: (point) => point.waiting },
    ],
    format: (value) => formatNumber(value, 1),
    least: 2,
    note: (now) =>
      `Room for ${count(now.capacity)} at a time. ${count(now.preemptions)} preempted, ` +
      `${count(now.rejected)} rejected since the start.`,
  },
  {
    title: "Time to first token",
    series: percentiles((point) => point.firstToken),
    format: formatSeconds,
    note: () => "Streams, over the last 30 seconds of each moment.",
  },
  {
    title: "Time between tokens",
    series: percentiles((point) => point.interToken),
    format: formatSeconds,
    note: () => "Streams, over the last 30 seconds of each moment.",
  },
  {
    title: "KV cache",
    series: [{ name: "used", value: (point) => point.kv }],
    format: formatShare,
    end: 1,
    note: (now) => `${count(now.kvUsed)} of ${count(now.kvTotal)} blocks.`,
  },
  {
    title: "KV cache in CPU memory",
    series: [{ name: "used", value: (point) => point.host }],
    format: formatShare,
    end: 1,
    note: (now) => `${count(now.hostUsed)} of ${count(now.hostTotal)} blocks.`,
    when: (now) => now.hostTotal > 0,
  },
  {
    title: "Prefix cache",
    series: [{ name: "hits", value: (point) => point.hitRate }],
    format: formatShare,
    end: 1,
    note: (now) =>
      `${count(now.hits)} of ${count(now.lookups)} prompts found a part of theirs since the start; ` +
      `${count(now.evictions)} blocks evicted.`,
  },
  {
    title: "HTTP requests per second",
    series: [
      { name: "succeeded", value: (point) => point.succeeded },
      { name: "failed", value: (point) => point.failed },
    ],
    format: formatRate,
    note: (now) => `${count(now.requests)} since the start, ${count(now.failed)} failed.`,
  },
  {
    title: "Speculative decoding",
    series: [{ name: "accepted drafts", value: (point) => point.acceptance }],
    format: formatShare,
    end: 1,
    note: (now) => `${count(now.accepted)} of ${count(now.drafted)} draft tokens since the start.`,
    when: (now) => now.drafted > 0,
  },
  {
    title: "Encoder cache",
    series: [{ name: "hits", value: (point) => point.encoderHitRate }],
    format: formatShare,
    end: 1,
    note: (now) =>
      `${formatBytes(now.encoderBytes)} of encoded media; ${count(now.encoderHits)} hits, ` +
      `${count(now.encoded)} items encoded since the start.`,
    when: (now) => now.encoderHits + now.encoderMisses > 0,
  },
];

function percentiles(of: (point: Point) => Percentiles): Series[] {
  return [
    { name: "median", value: (point) => of(point)[0] },
    { name: "p90", value: (point) => of(point)[1] },
    { name: "p99", value: (point) => of(point)[2] },
  ];
}

function count(value: number): string {
  return formatNumber(value);
}

function formatRate(value: number): string {
  return formatNumber(value, value < 10 ? 1 : 0);
}

function formatShare(value: number): string {
  return `${formatNumber(value * 100, value < 0.1 ? 1 : 0)} %`;
}
