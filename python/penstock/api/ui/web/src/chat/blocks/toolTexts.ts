/** The texts of tool calls, as a person reads them. */

import type { ToolBlock } from "../../api/types";
import { formatSeconds } from "../../ui/format";
import type { IconName } from "../../ui/icons";

export interface ToolSummary {
  icon: IconName;
  title: string;
  note?: string | undefined;
  /** How a call failed, such as "exit 1". */
  failure?: string | undefined;
}

export interface SearchHit {
  title: string;
  url: string;
  description: string;
}

/** The texts of a Python call's and a shell call's result, in the order in which they are shown. */
const OUTPUTS = [
  ["stdout", "Output"],
  ["result", "Result"],
  ["stderr", "Standard error"],
  ["exception", "Exception"],
] as const;

/** Return the icon and the heading of a tool call. */
export function summaryOf(block: ToolBlock): ToolSummary {
  const { result } = block;
  switch (block.tool) {
    case "web_search":
      return { icon: "globe", title: searchTitle(block), note: found(result) };
    case "code_execution": {
      const first = firstLine(codeOf(block));
      return { icon: "code", title: first ? `Python: ${first}` : "Python", note: duration(result) };
    }
    case "shell": {
      const ended = exit(result);
      const title = firstLine(commandsOf(block)[0] ?? "") || "Shell";
      return { icon: "terminal", title, note: ended, failure: ended };
    }
    default:
      return { icon: "tool", title: block.label || block.name };
  }
}

/** Return the arguments as indented JSON, or as they are if they are no JSON. */
export function shownArguments(block: { arguments: string }): string {
  const value = parsed(block.arguments);
  return value === undefined ? block.arguments : JSON.stringify(value, null, 2);
}

/** Return what a call of a tool of this kind runs, and the language for its colours. */
export function callOf(kind: string, json: string): { code: string; language: string } {
  const code = text(member(parsed(json), "code"));
  if (kind === "code_execution" && code) return { code, language: "python" };
  const commands = textsOf(member(parsed(json), "commands"));
  if (kind === "shell" && commands.length > 0) {
    return { code: commands.join("\n"), language: "bash" };
  }
  return { code: shownArguments({ arguments: json }), language: "json" };
}

/** Return the code that a call of the Python tool runs; "" for other tools. */
export function codeOf(block: ToolBlock): string {
  if (block.tool !== "code_execution") return "";
  return text(block.result["code"]) || text(argument(block, "code"));
}

/** Return the commands that a call of the shell tool runs; none for other tools. */
export function commandsOf(block: ToolBlock): string[] {
  if (block.tool !== "shell") return [];
  return textsOf(block.result["commands"] ?? argument(block, "commands"));
}

/** Return the texts that a call gave, each with its name. */
export function outputsOf(block: ToolBlock): { name: string; text: string }[] {
  if (block.tool !== "code_execution" && block.tool !== "shell") {
    return block.output ? [{ name: "Result", text: block.output }] : [];
  }
  return OUTPUTS.flatMap(([field, name]) => {
    const written = text(block.result[field]);
    return written === "" ? [] : [{ name, text: written }];
  });
}

/** Return the pages that a search found. Addresses that are no web addresses are left out. */
export function hitsOf(block: ToolBlock): SearchHit[] {
  if (block.tool !== "web_search") return [];
  const listed = member(parsed(block.output), "output");
  if (!Array.isArray(listed)) return [];
  return listed.flatMap((hit: unknown) => {
    const url = text(member(hit, "url"));
    if (!/^https?:\/\//i.test(url) || !URL.canParse(url)) return [];
    const title = text(member(hit, "title")) || url;
    return [{ title, url, description: text(member(hit, "description")) }];
  });
}

function searchTitle(block: ToolBlock): string {
  const query = text(block.result["query"]) || text(argument(block, "query"));
  return query ? `Searched: ${query}` : block.label;
}

function found(result: Record<string, unknown>): string | undefined {
  const count = result["results_count"];
  return typeof count === "number" ? `${count} ${count === 1 ? "result" : "results"}` : undefined;
}

function duration(result: Record<string, unknown>): string | undefined {
  const ms = result["execution_time_ms"];
  return typeof ms === "number" ? formatSeconds(ms / 1000) : undefined;
}

function exit(result: Record<string, unknown>): string | undefined {
  if (result["timed_out"] === true) return "timed out";
  const code = result["exit_code"];
  return typeof code === "number" ? `exit ${code}` : undefined;
}

function firstLine(code: string): string {
  return code.trim().split("\n", 1)[0] ?? "";
}

function argument(block: { arguments: string }, name: string): unknown {
  return member(parsed(block.arguments), name);
}

function parsed(json: string): unknown {
  try {
    return JSON.parse(json) as unknown;
  } catch {
    return undefined;
  }
}

function member(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null
    ? (value as Record<string, unknown>)[name]
    : undefined;
}

function textsOf(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((line) => typeof line === "string") : [];
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}
