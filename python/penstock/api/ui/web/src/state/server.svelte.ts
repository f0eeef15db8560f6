/** Facts about the server: its models and tools, and whether it answers. */

import { isAbort, messageOf, NetworkError } from "../api/client";
import { getInfo } from "../api/models";
import type { ModelInfo, ServerInfo } from "../api/types";

const USUAL_MS = 15_000;
/** While a model loads, or the server does not answer. */
const SOON_MS = 2_000;

let info = $state.raw<ServerInfo | null>(null);
let error = $state<string | null>(null);
let reachable = $state(true);
let timer: ReturnType<typeof setTimeout> | undefined;
let call: AbortController | null = null;

export const server = {
  /** Null until the server has answered once. */
  get info(): ServerInfo | null {
    return info;
  },
  /** The reason why the last question was not answered. */
  get error(): string | null {
    return error;
  },
  /** False while the server does not answer at all. */
  get reachable(): boolean {
    return reachable;
  },
  get models(): readonly ModelInfo[] {
    return info?.models ?? [];
  },
  model(id: string | null | undefined): ModelInfo | undefined {
    return this.models.find((model) => model.id === id);
  },
  /** Ask now, for example after a model was loaded. */
  refresh,
};

/** Ask the server again and again while the page is visible. Returns a function that stops. */
export function watchServer(): () => void {
  const done = new AbortController();
  const options = { signal: done.signal };
  const wake = () => {
    if (document.visibilityState === "visible") void refresh();
  };
  document.addEventListener("visibilitychange", wake, options);
  window.addEventListener("online", wake, options);
  void refresh();
  return () => {
    done.abort();
    clearTimeout(timer);
    call?.abort();
  };
}

async function refresh(): Promise<void> {
  clearTimeout(timer);
  call?.abort();
  const mine = (call = new AbortController());
  try {
    info = await getInfo(mine.signal);
    error = null;
    reachable = true;
  } catch (caught) {
    if (isAbort(caught)) return;
    error = messageOf(caught);
    reachable = !(caught instanceof NetworkError);
  }
  if (call === mine) timer = setTimeout(() => void next(), pause());
}

async function next(): Promise<void> {
  if (document.visibilityState === "visible") await refresh();
}

function pause(): number {
  const busy = server.models.some((model) => model.status === "reloading");
  return busy || error !== null ? SOON_MS : USUAL_MS;
}
