/** The chat list: newest first, in pages, with a search. The server keeps it. */

import { changeChat, deleteChat, importChat, listChats } from "../api/chats";
import { isAbort, messageOf } from "../api/client";
import type { Chat, ChatSummary } from "../api/types";

const PAGE = 40;
const TYPING_MS = 200;

let entries = $state<ChatSummary[]>([]);
let more = $state(false);
let query = $state("");
let status = $state<"loading" | "ready" | "failed">("loading");
let error = $state<string | null>(null);
let call: AbortController | null = null;
let typing: ReturnType<typeof setTimeout> | undefined;

/** Tells the other tabs that the list has changed. */
const tabs = new BroadcastChannel("penstock.chats");

export const chats = {
  get entries(): readonly ChatSummary[] {
    return entries;
  },
  get more(): boolean {
    return more;
  },
  get status(): "loading" | "ready" | "failed" {
    return status;
  },
  get error(): string | null {
    return error;
  },
  get query(): string {
    return query;
  },
  /** Search titles and texts. The empty text shows all chats. */
  set query(text: string) {
    query = text;
    clearTimeout(typing);
    typing = setTimeout(() => void load(), TYPING_MS);
  },

  refresh: load,

  async loadMore(): Promise<void> {
    const last = entries.at(-1);
    if (!last || !more) return;
    const page = await listChats({ q: query, limit: PAGE, before: last.id });
    const known = new Set(entries.map((entry) => entry.id));
    entries.push(...page.chats.filter((entry) => !known.has(entry.id)));
    more = page.more;
  },

  /** Show a chat that was created or that got a message: it moves to the top. */
  touched(chat: Chat, snippet?: string): void {
    const old = entries.find((entry) => entry.id === chat.id);
    const { id, title, updated_at } = chat;
    const entry = { id, title, updated_at, snippet: snippet ?? old?.snippet ?? "" };
    if (query === "") entries = [entry, ...entries.filter((other) => other.id !== id)];
    tabs.postMessage("changed");
  },

  async rename(id: string, title: string): Promise<Chat> {
    const chat = await changeChat(id, { title });
    const entry = entries.find((other) => other.id === id);
    if (entry) entry.title = chat.title;
    tabs.postMessage("changed");
    return chat;
  },

  async remove(id: string): Promise<void> {
    await deleteChat(id);
    entries = entries.filter((entry) => entry.id !== id);
    tabs.postMessage("changed");
  },

  /** Make a chat from an exported document. */
  async import(file: File): Promise<Chat> {
    let document: unknown;
    try {
      document = JSON.parse(await file.text());
    } catch {
      throw new Error(`${file.name} is not an exported chat.`);
    }
    const chat = await importChat(document);
    await load();
    tabs.postMessage("changed");
    return chat;
  },
};

/** Load the list, and again when another tab changes it or the page is looked at again. */
export function watchChats(): () => void {
  const done = new AbortController();
  const options = { signal: done.signal };
  const wake = () => {
    if (document.visibilityState === "visible") void load();
  };
  tabs.addEventListener("message", wake, options);
  document.addEventListener("visibilitychange", wake, options);
  void load();
  return () => {
    done.abort();
    call?.abort();
    clearTimeout(typing);
  };
}

async function load(): Promise<void> {
  call?.abort();
  const mine = (call = new AbortController());
  try {
    const limit = query === "" ? Math.max(PAGE, Math.min(entries.length, 200)) : PAGE;
    const page = await listChats({ q: query, limit, signal: mine.signal });
    entries = page.chats;
    more = page.more;
    status = "ready";
    error = null;
  } catch (caught) {
    if (isAbort(caught)) return;
    status = "failed";
    error = messageOf(caught);
  }
}
