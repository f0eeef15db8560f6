/** Texts that a person has begun to write, one per chat, until the tab is closed. */

const PREFIX = "penstock.draft.";

/** Return the text begun in a chat. `chat`: its id; null: the new chat. */
export function draftText(chat: string | null): string {
  try {
    return sessionStorage.getItem(PREFIX + (chat ?? "new")) ?? "";
  } catch {
    return "";
  }
}

/** Keep the text begun in a chat; an empty text is forgotten. */
export function keepDraftText(chat: string | null, text: string): void {
  const name = PREFIX + (chat ?? "new");
  try {
    if (text === "") sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, text);
  } catch {
    // The storage is full or forbidden.
  }
}
