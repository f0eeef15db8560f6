/** The settings of a chat as fields of requests. */

import type { ChatSettings } from "../../api/types";
import type { Value } from "./literals";

export type Fields = Record<string, Value>;

/** Settings that requests have under the same name. */
const SAME = [
  ...["temperature", "top_p", "top_k", "min_p", "max_tokens", "repetition_penalty"],
  ...["presence_penalty", "frequency_penalty", "seed", "stop", "enable_thinking"],
  ...["reasoning_effort", "grammar", "response_format", "logprobs", "top_logprobs", "adapter"],
  ...["agent_permission", "max_tool_rounds"],
] as const;

/** Settings of the answer's form, which an example that has its own replaces. */
const FORM = ["grammar", "response_format"];

/** Fields that OpenAI's client for Python knows; it sends others in `extra_body`. */
const OPENAI = new Set([
  ...["temperature", "top_p", "max_tokens", "presence_penalty", "frequency_penalty", "seed"],
  ...["stop", "reasoning_effort", "response_format", "logprobs", "top_logprobs", "tools"],
  ...["tool_choice", "web_search_options", "stream"],
]);

/** Fields that Anthropic's client for Python knows. Version 2 has none for sampling. */
const ANTHROPIC = new Set([
  "max_tokens",
  "stop_sequences",
  "thinking",
  "system",
  "tools",
  "tool_choice",
]);

/** Anthropic's client wants a limit. */
const ANTHROPIC_MAX_TOKENS = 1024;

/** Return the fields of a chat completion request. The messages and the model are not among them. */
export function chatFields(settings: ChatSettings): Fields {
  const fields: Fields = {};
  for (const name of SAME) {
    const value = settings[name];
    if (value !== undefined && value !== null) fields[name] = value as Value;
  }
  const { search, code, shell } = settings.tools ?? {};
  if (search) fields["web_search_options"] = {};
  if (shell) fields["enable_shell"] = true;
  if (code) fields["tools"] = [{ type: "code_interpreter", container: { type: "auto" } }];
  return fields;
}

/** Return the fields of a Messages request. */
export function messagesFields(settings: ChatSettings): Fields {
  const { stop, enable_thinking, logprobs, top_logprobs, tools, enable_shell, ...rest } =
    chatFields(settings);
  void [logprobs, top_logprobs, enable_shell]; // Messages have none of these.
  const fields: Fields = { max_tokens: ANTHROPIC_MAX_TOKENS, ...rest };
  if (settings.system) fields["system"] = settings.system;
  if (stop !== undefined) fields["stop_sequences"] = typeof stop === "string" ? [stop] : stop;
  if (tools !== undefined) fields["enable_code_execution"] = true;
  if (typeof enable_thinking === "boolean") {
    fields["thinking"] = enable_thinking
      ? { type: "enabled", budget_tokens: 1024 }
      : { type: "disabled" };
  }
  return fields;
}

/** Return the fields without those that choose the form of the answer or offer tools. */
export function withoutForm(fields: Fields): Fields {
  const own = [...FORM, "tools", "web_search_options", "enable_shell", "enable_code_execution"];
  return Object.fromEntries(Object.entries(fields).filter(([name]) => !own.includes(name)));
}

/** Return the fields as arguments of a client that knows only some of them. */
export function argumentsFor(client: "openai" | "anthropic", fields: Fields): Fields {
  const known = client === "openai" ? OPENAI : ANTHROPIC;
  const entries = Object.entries(fields);
  const extra = Object.fromEntries(entries.filter(([name]) => !known.has(name)));
  const named = Object.fromEntries(entries.filter(([name]) => known.has(name)));
  return Object.keys(extra).length === 0 ? named : { ...named, extra_body: extra };
}
