/** How an answer ended, as a person reads it. */

import type { Message } from "../api/types";

export interface Ending {
  text: string;
  tone: "info" | "warning" | "danger";
  /** Whether the answer can go on. */
  continues: boolean;
}

/** Return how an answer ended, or null if it is complete or still being written. */
export function ended(message: Message): Ending | null {
  const continues = message.blocks.at(-1)?.type === "text";
  switch (message.status) {
    case "failed":
      return {
        text: plain(message.info.error?.message ?? "The answer failed."),
        tone: "danger",
        continues,
      };
    case "stopped":
      return { text: "You stopped this answer.", tone: "info", continues };
    case "done":
      return unfinished(message.info.finish_reason, continues);
    case "running":
      return null;
  }
}

/** The server's errors name a field of the request first, which a person did not write. */
function plain(error: string): string {
  const text = error.replace(/^`[^`]*`: /, "");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function unfinished(reason: string | undefined, continues: boolean): Ending | null {
  switch (reason) {
    case "length":
      return { text: "The answer reached its greatest length.", tone: "info", continues };
    case "rounds":
      return { text: "The answer used its last round of tools.", tone: "info", continues };
    default:
      return null;
  }
}
