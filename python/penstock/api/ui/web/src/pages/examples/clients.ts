/** Pieces of programs that call the server. */

import { argumentsFor, type Fields } from "./fields";
import { Code, literal, pythonArguments, type Written } from "./literals";

export type Client = "curl" | "openai" | "anthropic" | "javascript";

export const CLIENTS: readonly { value: Client; label: string; language: string }[] = [
  { value: "curl", label: "curl", language: "bash" },
  { value: "openai", label: "Python, openai", language: "python" },
  { value: "anthropic", label: "Python, anthropic", language: "python" },
  { value: "javascript", label: "JavaScript", language: "javascript" },
];

type Body = { readonly [name: string]: Written };

/** Return a command that posts a body. `more`: further options of curl. */
export function curl(url: string, body: Body, more = ""): string {
  const quoted = literal(body, "json").replaceAll("'", "'\\''");
  return `curl ${url} \\\n  -H 'Content-Type: application/json'${more} \\\n  -d '${quoted}'\n`;
}

/** Return a command that posts a body with the content of files: `Code` in it is a shell command. */
export function curlWithFiles(url: string, body: Body): string {
  const text = literal(escaped(body), "json");
  return `curl ${url} -H 'Content-Type: application/json' -d @- <<END\n${text}\nEND\n`;
}

/** Return the shell command whose output is a file in base64, on one line. */
export function base64Of(path: string): string {
  return `$(base64 < ${path} | tr -d '\\n')`;
}

/** The shell replaces some signs in the text that follows `<<END`. */
function escaped(value: Written): Written {
  if (typeof value === "string") {
    const quoted = JSON.stringify(value).replace(/[\\$`]/g, "\\$&");
    return new Code(quoted);
  }
  if (value instanceof Code) return new Code(`"${value.text}"`);
  if (Array.isArray(value)) return value.map((one) => escaped(one as Written));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, one]) => [key, escaped(one as Written)]),
  );
}

/** Return a Python program with OpenAI's client. `code` follows the creation of the client. */
export function openai(base: string, code: string, imports = ""): string {
  return `${imports}from openai import OpenAI\n\nclient = OpenAI(base_url="${base}/v1", api_key="none")\n${code}`;
}

/** Return a Python program with Anthropic's client. */
export function anthropic(base: string, code: string, imports = ""): string {
  return `${imports}from anthropic import Anthropic\n\nclient = Anthropic(base_url="${base}", api_key="none")\n${code}`;
}

/** Return the arguments of `client.chat.completions.create`, one per line. */
export function openaiArguments(head: Body, fields: Fields, indent = 4): string {
  return pythonArguments({ ...head, ...argumentsFor("openai", fields) }, indent);
}

export function anthropicArguments(head: Body, fields: Fields, indent = 4): string {
  return pythonArguments({ ...head, ...argumentsFor("anthropic", fields) }, indent);
}

/** Return JavaScript that posts a body and assigns the response to `name`. */
export function post(url: string, body: Body, name = "response"): string {
  return `const ${name} = await fetch("${url}", {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(${literal(body, "javascript", 2, 23)}),
});
`;
}
