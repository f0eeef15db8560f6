/** Follows a message while the server writes it, over lost connections and restarts. */

import { ApiError, request } from "./client";
import { readEvents } from "./sse";
import type { Message, MessageEvent } from "./types";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
/** The server sends a comment at least every ten seconds, so a longer silence is a lost connection. */
const SILENCE_MS = 45_000;

export interface Follower {
  /** Called for each event, in order. */
  event: (event: MessageEvent) => void;
  /** Called when the connection is lost (false) and when it works again (true). */
  connected?: (connected: boolean) => void;
}

/**
 * Report the events of a message until the server says that it is complete. A lost connection is
 * opened again; the server then sends the whole message first. Throws ApiError if the server
 * refuses (the message was deleted), and the signal's AbortError.
 */
export async function followMessage(
  chatId: string,
  messageId: string,
  follower: Follower,
  signal: AbortSignal,
): Promise<void> {
  let wait = FIRST_WAIT_MS;
  for (;;) {
    try {
      const complete = await followOnce(chatId, messageId, signal, (event) => {
        if (event.event === "message") {
          wait = FIRST_WAIT_MS;
          follower.connected?.(true);
        }
        follower.event(event);
      });
      if (complete) return;
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof ApiError && error.status < 500) throw error;
    }
    follower.connected?.(false);
    await pause(wait, signal);
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }
}

/** Fold an event into `message`, in place. */
export function applyEvent(message: Message, event: MessageEvent): void {
  switch (event.event) {
    case "message":
      Object.assign(message, event.data);
      return;
    case "block":
      message.blocks[event.data.index] = event.data.block;
      return;
    case "append": {
      const block = message.blocks[event.data.index];
      if (block?.type !== "text" && block?.type !== "reasoning") return;
      block.text += event.data.text;
      if (block.type === "text" && event.data.tokens) {
        (block.tokens ??= []).push(...event.data.tokens);
      }
      return;
    }
    case "info":
      message.status = event.data.status;
      message.info = event.data.info;
  }
}

/** Read one connection. Returns whether the message was complete at its end. */
async function followOnce(
  chatId: string,
  messageId: string,
  signal: AbortSignal,
  report: (event: MessageEvent) => void,
): Promise<boolean> {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(), SILENCE_MS);
  };
  const chat = encodeURIComponent(chatId);
  const url = `/ui/api/chats/${chat}/messages/${encodeURIComponent(messageId)}/events`;
  try {
    const response = await request(url, {
      headers: { accept: "text/event-stream" },
      cache: "no-store",
      signal: AbortSignal.any([signal, silence.signal]),
    });
    if (response.body === null) return false;
    for await (const { event, data } of readEvents(response.body, heard)) {
      const parsed = { event, data: JSON.parse(data) } as MessageEvent;
      report(parsed);
      if (parsed.event === "info" && parsed.data.status !== "running") return true;
      if (parsed.event === "message" && parsed.data.status !== "running") return true;
    }
    return false;
  } finally {
    clearTimeout(timer);
  }
}

/** Wait `ms`, or until the browser is online again or the page is looked at. */
async function pause(ms: number, signal: AbortSignal): Promise<void> {
  const done = new AbortController();
  await new Promise<void>((resolve) => {
    const options = { signal: done.signal };
    const timer = setTimeout(resolve, ms);
    done.signal.addEventListener("abort", () => clearTimeout(timer));
    signal.addEventListener("abort", () => resolve(), options);
    window.addEventListener("online", () => resolve(), options);
    document.addEventListener("visibilitychange", () => resolve(), options);
  }).finally(() => done.abort());
  signal.throwIfAborted();
}
