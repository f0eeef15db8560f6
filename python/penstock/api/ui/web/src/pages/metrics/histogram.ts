/** Histograms of Prometheus: counts of values in buckets. */

import type { Samples } from "./parse";

/** `counts[i]`: the number of values up to `bounds[i]`. The last bound is infinite. */
export interface Histogram {
  bounds: readonly number[];
  counts: readonly number[];
}

/** Return the sum of a metric's histograms over all labels. */
export function histogramOf(samples: Samples, name: string): Histogram {
  const counts = new Map<number, number>();
  for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
    const text = labels["le"] ?? "";
    const bound = text === "+Inf" ? Infinity : Number(text);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  const bounds = [...counts.keys()].sort((a, b) => a - b);
  return { bounds, counts: bounds.map((bound) => counts.get(bound) ?? 0) };
}

/** Return the histogram of the values between two snapshots; null if the server restarted. */
export function between(before: Histogram, after: Histogram): Histogram | null {
  const counts = after.counts.map((count, index) => {
    const bound = after.bounds[index];
    const at = before.bounds.findIndex((other) => other === bound);
    return count - (before.counts[at] ?? 0);
  });
  return counts.some((count) => count < 0) ? null : { bounds: after.bounds, counts };
}

/**
 * Return the estimate of a quantile, between 0 and 1; null without values. Values are taken to be
 * spread evenly in their bucket. A value in the infinite bucket counts as the largest finite bound.
 */
export function quantile({ bounds, counts }: Histogram, wanted: number): number | null {
  const all = counts.at(-1) ?? 0;
  if (all === 0) return null;
  const rank = wanted * all;
  const at = counts.findIndex((count) => count >= rank && count > 0);
  const bound = bounds[at] ?? Infinity;
  const lower = bounds[at - 1] ?? 0;
  if (bound === Infinity) return lower;
  const below = counts[at - 1] ?? 0;
  const inside = (counts[at] ?? 0) - below;
  return lower + (bound - lower) * (inside === 0 ? 1 : (rank - below) / inside);
}
