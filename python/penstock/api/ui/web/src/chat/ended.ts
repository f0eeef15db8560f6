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
        text: message.info.error?.message ?? "The answer failed.",
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
