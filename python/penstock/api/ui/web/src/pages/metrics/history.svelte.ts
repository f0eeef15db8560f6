/** The metrics of the last minutes. They are kept while other pages are shown. */

import { getMetrics } from "../../api/models";
import { parseMetrics } from "./parse";
import { type Point, pointOf, type Snapshot, snapshotOf } from "./snapshot";

export const PERIOD_S = 15 * 60;
export const INTERVAL_MS = 5_000;
/** The first figures appear soon. */
const FIRST_MS = 1_000;
/** Shares and percentiles cover this time. */
const COVERED_S = 30;
/** Two snapshots that are further apart have a gap between them: the page was hidden. */
const GAP_S = (3 * INTERVAL_MS) / 1000;

export class History {
  points = $state.raw<readonly Point[]>([]);
  latest = $state.raw<Snapshot | null>(null);

  #snapshots: Snapshot[] = [];

  async read(signal?: AbortSignal): Promise<void> {
    const text = await getMetrics(signal);
    this.add(snapshotOf(parseMetrics(text), performance.now() / 1000, Date.now() / 1000));
  }

  add(snapshot: Snapshot): void {
    const before = this.latest;
    this.latest = snapshot;
    if (before && snapshot.time - before.time > GAP_S) this.#snapshots = [];
    this.#snapshots.push(snapshot);
    this.#snapshots = this.#snapshots.filter(({ time }) => snapshot.time - time <= COVERED_S);
    const [earlier] = this.#snapshots;
    if (before === null || earlier === undefined || this.#snapshots.length < 2) return;
    const point = pointOf(snapshot, before, earlier);
    this.points = [...this.points, point].filter(({ time }) => point.time - time <= PERIOD_S);
  }

  pause(): number {
    return this.points.length === 0 ? FIRST_MS : INTERVAL_MS;
  }
}

export const history = new History();

/** Whether a line is broken between two points. */
export function hasGap(before: Point, after: Point): boolean {
  return after.time - before.time > GAP_S;
}
