/** Writes values as source code. */

export type Value =
  null | boolean | number | string | readonly Value[] | { readonly [key: string]: Value };

/** Code that stands for itself in a value, such as the name of a variable. */
export class Code {
  constructor(readonly text: string) {}
}

export type Written = Value | Code | readonly Written[] | { readonly [key: string]: Written };

export type Style = "json" | "python" | "javascript";

const WIDTH = 88;
const WORDS: Record<Style, { true: string; false: string; null: string }> = {
  json: { true: "true", false: "false", null: "null" },
  javascript: { true: "true", false: "false", null: "null" },
  python: { true: "True", false: "False", null: "None" },
};
const IDENTIFIER = /^[A-Za-z_$][\w$]*$/;

/** Return `value` as a literal whose first line begins at column `column` of a line indented by `indent`. */
export function literal(value: Written, style: Style, indent = 0, column = indent): string {
  const short = inline(value, style);
  if (short !== null && column + short.length <= WIDTH) return short;
  if (Array.isArray(value)) {
    return block(
      "[",
      "]",
      value.map((one) => literal(one as Written, style, indent + step(style))),
      style,
      indent,
    );
  }
  if (isRecord(value)) {
    const entries = Object.entries(value).map(([key, one]) => {
      const head = `${keyOf(key, style)}: `;
      const inner = indent + step(style);
      return head + literal(one, style, inner, inner + head.length);
    });
    return block("{", "}", entries, style, indent);
  }
  return atom(value as null | boolean | number | string | Code, style);
}

/** Return `name=value` for each entry: the arguments of a Python call, one per line. */
export function pythonArguments(values: { readonly [name: string]: Written }, indent = 4): string {
  return Object.entries(values)
    .map(([name, value]) => {
      const head = `${" ".repeat(indent)}${name}=`;
      return `${head}${literal(value, "python", indent, head.length)},\n`;
    })
    .join("");
}

function block(open: string, close: string, parts: string[], style: Style, indent: number): string {
  const inner = " ".repeat(indent + step(style));
  const comma = style === "json" ? "" : ",";
  const lines = parts.map(
    (part, index) => `${inner}${part}${index < parts.length - 1 ? "," : comma}`,
  );
  return `${open}\n${lines.join("\n")}\n${" ".repeat(indent)}${close}`;
}

function inline(value: Written, style: Style): string | null {
  if (Array.isArray(value))
    return `[${value.map((one) => inline(one as Written, style)).join(", ")}]`;
  if (isRecord(value)) {
    const entries = Object.entries(value).map(
      ([key, one]) => `${keyOf(key, style)}: ${inline(one, style)}`,
    );
    const space = style === "javascript" && entries.length > 0 ? " " : "";
    return `{${space}${entries.join(", ")}${space}}`;
  }
  return atom(value as null | boolean | number | string | Code, style);
}

function atom(value: null | boolean | number | string | Code, style: Style): string {
  if (value instanceof Code) return value.text;
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "number") return String(value);
  return WORDS[style][value === null ? "null" : value ? "true" : "false"];
}

function keyOf(key: string, style: Style): string {
  return style === "javascript" && IDENTIFIER.test(key) ? key : JSON.stringify(key);
}

function step(style: Style): number {
  return style === "python" ? 4 : 2;
}

function isRecord(value: Written): value is { readonly [key: string]: Written } {
  return (
    typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Code)
  );
}
