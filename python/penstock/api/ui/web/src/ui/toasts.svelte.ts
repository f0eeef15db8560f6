/** Short messages at the edge of the page. */

import { isAbort, messageOf } from "../api/client";

export interface Toast {
  id: number;
  text: string;
  tone: "info" | "danger";
  action?: { label: string; run: () => void };
}

const SHOWN_MS = 5_000;
/** Errors and messages with a button stay longer. */
const LONG_MS = 12_000;
const MOST = 4;

let list = $state<Toast[]>([]);
let next = 1;

export const toasts = {
  get list(): readonly Toast[] {
    return list;
  },

  show(text: string, action?: Toast["action"]): void {
    add(action ? { text, tone: "info", action } : { text, tone: "info" });
  },

  /** Show an error. The page's own cancellations are not shown. */
  error(error: unknown): void {
    if (!isAbort(error)) add({ text: messageOf(error), tone: "danger" });
  },

  close(id: number): void {
    list = list.filter((toast) => toast.id !== id);
  },
};

/** Run `work`, and show its error if it fails. Returns whether it succeeded. */
export async function attempt(work: () => Promise<unknown>): Promise<boolean> {
  try {
    await work();
    return true;
  } catch (error) {
    toasts.error(error);
    return false;
  }
}

function add(toast: Omit<Toast, "id">): void {
  const id = next++;
  const others = list.filter((other) => other.text !== toast.text);
  list = [...others.slice(1 - MOST), { ...toast, id }];
  const long = toast.tone === "danger" || toast.action !== undefined;
  setTimeout(() => toasts.close(id), long ? LONG_MS : SHOWN_MS);
}
