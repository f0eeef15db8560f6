/** What a tool call does, as a person reads it. */

import type { ToolBlock } from "../../api/types";
import type { IconName } from "../../ui/icons";

export interface ToolSummary {
  icon: IconName;
  title: string;
  note?: string;
  /** How a call failed, such as "exit 1". */
  failure?: string;
}

/** Return the icon and the heading of a tool call. */
export function summaryOf(block: ToolBlock): ToolSummary {
  const { result } = block;
  switch (block.tool) {
    case "web_search":
      return {
        icon: "globe",
        title: text(result["query"]) ? `Searched: ${text(result["query"])}` : block.label,
        ...note(sources(result)),
      };
    case "code_execution":
      return { icon: "code", title: "Python", ...note(duration(result)) };
    case "shell": {
      const ended = exit(result);
      const title = lines(result["commands"])[0] ?? "Shell";
      return { icon: "terminal", title, ...(ended && { note: ended, failure: ended }) };
    }
    default:
      return { icon: "tool", title: block.label || block.name };
  }
}

/** Return the arguments as indented JSON, or as they are if they are no JSON. */
export function shownArguments(block: { arguments: string }): string {
  try {
    return JSON.stringify(JSON.parse(block.arguments), null, 2);
  } catch {
    return block.arguments;
  }
}

/** Return the code that a call of the Python tool runs. */
export function codeOf(block: ToolBlock): string {
  if (typeof block.result["code"] === "string") return block.result["code"];
  try {
    const given = JSON.parse(block.arguments) as { code?: unknown };
    return text(given.code);
  } catch {
    return "";
  }
}

export function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

export function lines(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((line) => typeof line === "string") : [];
}

function sources(result: Record<string, unknown>): string | undefined {
  const count = result["results_count"];
  return typeof count === "number" ? `${count} ${count === 1 ? "result" : "results"}` : undefined;
}

function duration(result: Record<string, unknown>): string | undefined {
  const ms = result["execution_time_ms"];
  return typeof ms === "number" ? `${(ms / 1000).toFixed(1)} s` : undefined;
}

function exit(result: Record<string, unknown>): string | undefined {
  if (result["timed_out"] === true) return "timed out";
  const code = result["exit_code"];
  return typeof code === "number" ? `exit ${code}` : undefined;
}

function note(value: string | undefined): { note?: string } {
  return value === undefined ? {} : { note: value };
}
