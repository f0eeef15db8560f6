/** The request log as this tab has read it. */

import { listRequests } from "../../api/models";
import type { RequestEntry } from "../../api/types";

const KEPT = 500;

export type StatusClass = "" | "ok" | "failed" | "4" | "5";

export interface Filter {
  path: string;
  model: string;
  status: StatusClass;
}

export class RequestList {
  /** Newest first. */
  entries = $state.raw<readonly RequestEntry[]>([]);

  #seen: { process: string; after: number } | undefined;

  async refresh(signal?: AbortSignal): Promise<void> {
    const { process, requests } = await listRequests(this.#seen, signal);
    const newest = requests.at(-1);
    if (newest) this.#seen = { process, after: newest.number };
    if (requests.length > 0) this.entries = merged(this.entries, requests);
  }
}

/** Return the entries of `known` and `fresh`, each once, newest first. */
export function merged(
  known: readonly RequestEntry[],
  fresh: readonly RequestEntry[],
): RequestEntry[] {
  const all = new Map([...known, ...fresh].map((entry) => [keyOf(entry), entry]));
  return [...all.values()].sort((a, b) => b.time - a.time || b.number - a.number).slice(0, KEPT);
}

/** Clients may choose ids, so an id alone is not unique. */
export function keyOf({ id, time, number }: RequestEntry): string {
  return `${id} ${time} ${number}`;
}

/** Whether a request succeeded. */
export function succeeded({ status, outcome }: RequestEntry): boolean {
  return status < 400 && outcome === "completed";
}

/** Return the entries that a filter lets through. An empty field lets everything through. */
export function filtered(entries: readonly RequestEntry[], filter: Filter): RequestEntry[] {
  return entries.filter(
    (entry) =>
      (filter.path === "" || entry.path === filter.path) &&
      (filter.model === "" || entry.model === filter.model) &&
      hasStatus(entry, filter.status),
  );
}

function hasStatus(entry: RequestEntry, wanted: StatusClass): boolean {
  switch (wanted) {
    case "":
      return true;
    case "ok":
      return succeeded(entry);
    case "failed":
      return !succeeded(entry);
    default:
      return String(entry.status).startsWith(wanted);
  }
}

/** Return the rate of an answer in tokens per second; null without a stream of several tokens. */
export function rateOf({ ttft_s, seconds, completion_tokens }: RequestEntry): number | null {
  if (ttft_s === null || completion_tokens < 2 || seconds <= ttft_s) return null;
  return (completion_tokens - 1) / (seconds - ttft_s);
}
