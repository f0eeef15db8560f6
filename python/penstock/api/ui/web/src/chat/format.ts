/** The format that an answer must have, between the settings of a chat and the page's form. */

import type { ChatSettings } from "../api/types";

export type FormatKind = "text" | "json_schema" | "regex" | "lark";

export interface Format {
  kind: FormatKind;
  text: string;
}

type FormatSettings = Pick<ChatSettings, "grammar" | "response_format">;
type Changes = { [name in keyof FormatSettings]: FormatSettings[name] | undefined };

const NAME = "answer";

/** Return the format that settings ask for, as a person writes it. */
export function formatOf(settings: FormatSettings): Format {
  const asked = settings.response_format as { json_schema?: { schema?: unknown } } | undefined;
  if (asked?.json_schema) {
    return { kind: "json_schema", text: JSON.stringify(asked.json_schema.schema, null, 2) };
  }
  const grammar = settings.grammar as { type?: string; value?: string } | undefined;
  if (grammar?.type === "regex" || grammar?.type === "lark") {
    return { kind: grammar.type, text: grammar.value ?? "" };
  }
  return { kind: "text", text: "" };
}

/** Return the settings for a format, or what is wrong with its text. */
export function parseFormat(kind: FormatKind, text: string): Changes | { error: string } {
  if (kind === "text" || text.trim() === "") {
    return { grammar: undefined, response_format: undefined };
  }
  if (kind !== "json_schema") {
    return { grammar: { type: kind, value: text }, response_format: undefined };
  }
  try {
    const schema: unknown = JSON.parse(text);
    const format = { type: "json_schema", json_schema: { name: NAME, schema } };
    return { grammar: undefined, response_format: format };
  } catch (error) {
    return { error: error instanceof Error ? error.message : "This is not JSON." };
  }
}
