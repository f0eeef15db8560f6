/** Downloads of models: their list, progress and rates. */

import { cancelPull, listPulls, startPull } from "../../api/models";
import type { Pull } from "../../api/types";
import { attempt } from "../../ui/toasts.svelte";
import { RateMeter } from "./rate";

export const RUNNING_MS = 1_000;
/** Another tab may have started a download. */
export const IDLE_MS = 10_000;

/** The downloads of the server. `finished` is called when one has ended. */
export class Pulls {
  list = $state.raw<readonly Pull[]>([]);
  /** The id of a download -> its rate in bytes per second. */
  rates = $state.raw<Readonly<Record<string, number | null>>>({});

  readonly #meters = new Map<string, RateMeter>();
  readonly #finished: () => void;

  constructor(finished: () => void) {
    this.#finished = finished;
  }

  get running(): boolean {
    return this.list.some(({ state }) => state === "running");
  }

  async refresh(signal?: AbortSignal): Promise<void> {
    const before = this.#running();
    this.list = await listPulls(signal);
    this.#measure();
    const after = this.#running();
    if ([...before].some((id) => !after.has(id))) this.#finished();
  }

  /** Start a download; an error is shown. */
  async start(model: string): Promise<boolean> {
    return attempt(async () => {
      await startPull(model);
      await this.refresh();
    });
  }

  /** Cancel a running download, or remove one that has ended from the list. */
  async cancel(id: string): Promise<boolean> {
    return attempt(async () => {
      await cancelPull(id);
      await this.refresh();
    });
  }

  /** Start the model of a download that has ended again. */
  async retry(pull: Pull): Promise<void> {
    await attempt(() => cancelPull(pull.id));
    await this.start(pull.model);
  }

  /** Return the running download of a model. */
  of(model: string): Pull | undefined {
    return this.list.find((pull) => pull.model === model && pull.state === "running");
  }

  #running(): Set<string> {
    return new Set(this.list.filter(({ state }) => state === "running").map(({ id }) => id));
  }

  #measure(): void {
    const now = performance.now() / 1000;
    const rates: Record<string, number | null> = {};
    for (const pull of this.list) {
      const meter = this.#meters.get(pull.id) ?? new RateMeter();
      this.#meters.set(pull.id, meter);
      rates[pull.id] = meter.add(now, doneBytes(pull));
    }
    this.rates = rates;
  }
}

/** Return how many bytes of a download have arrived. */
export function doneBytes(pull: Pull): number {
  return pull.files.reduce((sum, file) => sum + file.done, 0);
}

/** Return the size of a download; null if a file has an unknown size, or none has begun. */
export function totalBytes(pull: Pull): number | null {
  if (pull.files.length === 0) return null;
  return pull.files.reduce<number | null>(
    (sum, file) => (sum === null || file.total === null ? null : sum + file.total),
    0,
  );
}
