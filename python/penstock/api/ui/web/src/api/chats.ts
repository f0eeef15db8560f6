/** Chats, their messages and their attachments. */

import { getJson, sendForm, sendJson, type Upload } from "./client";
import type {
  Attachment,
  Chat,
  ChatPage,
  ChatSettings,
  ChatWithMessages,
  Message,
  NewBlock,
} from "./types";

const CHATS = "/ui/api/chats";

/** Return a page of the chat list, newest first. `before`: the id of the last chat of the page before. */
export function listChats(
  options: { q?: string; limit?: number; before?: string; signal?: AbortSignal } = {},
): Promise<ChatPage> {
  const { signal, ...query } = options;
  return getJson(CHATS, { query: { ...query, q: query.q || undefined }, signal });
}

export function createChat(start: { title?: string; settings?: ChatSettings } = {}): Promise<Chat> {
  return sendJson("POST", CHATS, start);
}

/** Return a chat with the messages of all its branches, in the order of their creation. */
export function getChat(id: string, signal?: AbortSignal): Promise<ChatWithMessages> {
  return getJson(chatPath(id), { signal });
}

export function changeChat(
  id: string,
  change: { title?: string; settings?: ChatSettings; tail?: string },
): Promise<Chat> {
  return sendJson("PATCH", chatPath(id), change);
}

export function deleteChat(id: string): Promise<void> {
  return sendJson("DELETE", chatPath(id));
}

/** The address of a chat as a document, for a link that saves it. */
export function exportAddress(id: string): string {
  return `${chatPath(id)}/export`;
}

/** Make a chat from a document that was exported. */
export function importChat(document: unknown): Promise<Chat> {
  return sendJson("POST", `${CHATS}/import`, document);
}

/**
 * Add a user message below `parent` (null: the first one) and start its answer. `answer`: an answer
 * that exists already, so that no model writes one.
 */
export function addMessage(
  chat: string,
  parent: string | null,
  blocks: NewBlock[],
  answer?: NewBlock[],
): Promise<{ user: Message; answer: Message }> {
  return sendJson("POST", `${chatPath(chat)}/messages`, { parent, blocks, answer });
}

/** Start another answer to the user message `message`. */
export function answerAgain(chat: string, message: string): Promise<Message> {
  return sendJson("POST", `${messagePath(chat, message)}/answer`, {});
}

/** Go on with the answer `message`, which was stopped. */
export function continueAnswer(chat: string, message: string): Promise<Message> {
  return sendJson("POST", `${messagePath(chat, message)}/answer`, { continue: true });
}

/** Replace the text of an answer. Reasoning, tool calls and files stay. */
export function changeAnswer(chat: string, message: string, text: string): Promise<Message> {
  return sendJson("PATCH", messagePath(chat, message), { text });
}

/** Stop a running answer. The text that was written stays. */
export function stopAnswer(chat: string, message: string): Promise<Message> {
  return sendJson("POST", `${messagePath(chat, message)}/stop`, {});
}

/** Upload a file. `progress` gets a fraction from 0 to 1. */
export function uploadAttachment(
  file: File,
  progress?: (fraction: number) => void,
): Upload<Attachment> {
  const form = new FormData();
  form.append("file", file, file.name);
  return sendForm("/ui/api/attachments", form, progress);
}

/** Answer an approval request of a tool. `always`: further calls in this chat need no approval. */
export function decideApproval(
  approval: string,
  decision: "approve" | "deny",
  always = false,
): Promise<unknown> {
  const body = { decision, remember_for_session: always };
  return sendJson("POST", `/v1/agent/approvals/${encodeURIComponent(approval)}`, body);
}

function chatPath(id: string): string {
  return `${CHATS}/${encodeURIComponent(id)}`;
}

function messagePath(chat: string, message: string): string {
  return `${chatPath(chat)}/messages/${encodeURIComponent(message)}`;
}
