/** Work that is repeated while the page is visible. */

import { isAbort } from "../api/client";

/**
 * Call `work` now, and `pause()` milliseconds after each of its ends, while the tab is visible. An
 * error of `work` goes to `failed`. Returns a function that stops and cancels the running call.
 */
export function poll(
  work: (signal: AbortSignal) => Promise<void>,
  pause: () => number,
  failed: (error: unknown) => void,
): () => void {
  const done = new AbortController();
  const { signal } = done;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let running = false;

  async function turn(): Promise<void> {
    if (running || signal.aborted || document.visibilityState === "hidden") return;
    running = true;
    clearTimeout(timer);
    try {
      await work(signal);
    } catch (error) {
      if (!isAbort(error)) failed(error);
    }
    running = false;
    if (!signal.aborted) timer = setTimeout(() => void turn(), pause());
  }

  document.addEventListener("visibilitychange", () => void turn(), { signal });
  void turn();
  return () => {
    done.abort();
    clearTimeout(timer);
  };
}
