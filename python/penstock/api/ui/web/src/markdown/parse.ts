/**
 * Markdown of a model or a person, as blocks of sanitized HTML.
 *
 * A text that grows is parsed again from its start, but a block whose source did not change is the
 * same object as before, so that the page renders only the end of the text again.
 */

import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";

/** HTML that `sanitize` made. */
export type SafeHtml = string & { readonly safe: unique symbol };

export interface HtmlBlock {
  kind: "html";
  html: SafeHtml;
}

export interface CodeBlock {
  kind: "code";
  code: string;
  language: string;
  /** False while the fence that ends the block has not been written. */
  closed: boolean;
}

export type MarkdownBlock = HtmlBlock | CodeBlock;

/** HTML that a text may contain; anything else is shown as text. No attributes. */
const PLAIN_TAG = /^<\/?(?:br|sub|sup|kbd|mark|details|summary|b|i|u|s|em|strong)\s*\/?>$/i;
const CLASS = /^(?:language-[\w+#.-]+|math|math display)$/;
const EXTERNAL = /^(?:https?|mailto):/i;

const marked = new Marked({
  gfm: true,
  breaks: false,
  renderer: {
    html: ({ text }) => escapeTags(text),
    image: ({ href, text }) =>
      href.startsWith("data:image/") ? picture(href, text) : link(href, text),
  },
  extensions: [displayMath(), inlineMath()],
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  const href = node.getAttribute("href") ?? "";
  if (!EXTERNAL.test(href)) node.removeAttribute("href");
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

DOMPurify.addHook("uponSanitizeAttribute", (_, attribute) => {
  if (attribute.attrName === "class" && !CLASS.test(attribute.attrValue))
    attribute.keepAttr = false;
});

interface Parsed {
  raw: string;
  /** Null: the source shows nothing, such as an empty line. */
  block: MarkdownBlock | null;
}

/** The number of blocks in a group that no longer changes. */
const GROUP = 40;

/**
 * Parses one text again and again while it grows. If the text only got longer, the last two blocks
 * are parsed again and the others are kept, because new text can change only the end.
 */
export class MarkdownParser {
  /** Groups of blocks before the tail, which are kept while the text grows. */
  #settled: MarkdownBlock[][] = [];
  #settledChars = 0;
  #tail: Parsed[] = [];
  #source = "";

  /** Return the blocks in groups. A group whose blocks did not change is the same array as before,
   * except the last one. */
  parse(source: string): MarkdownBlock[][] {
    const grew = source.startsWith(this.#source);
    if (!grew) [this.#settled, this.#settledChars] = [[], 0];
    const kept = grew ? this.#tail.slice(0, -2) : [];
    const start = this.#settledChars + charsOf(kept);
    const old = new Map(this.#tail.map(({ raw, block }) => [raw, block]));
    const fresh = marked.lexer(source.slice(start)).map((token): Parsed => {
      const { raw } = token;
      const block = old.get(raw) ?? blockOf(token);
      old.set(raw, block);
      return { raw, block };
    });
    this.#tail = [...kept, ...fresh];
    this.#source = source;
    this.#settle();
    const tail = blocksOf(this.#tail);
    return tail.length > 0 ? [...this.#settled, tail] : [...this.#settled];
  }

  #settle(): void {
    while (this.#tail.length >= GROUP + 2) {
      const group = this.#tail.splice(0, GROUP);
      this.#settled.push(blocksOf(group));
      this.#settledChars += charsOf(group);
    }
  }
}

function charsOf(parsed: Parsed[]): number {
  return parsed.reduce((sum, { raw }) => sum + raw.length, 0);
}

function blocksOf(parsed: Parsed[]): MarkdownBlock[] {
  return parsed.flatMap(({ block }) => (block === null ? [] : [block]));
}

function blockOf(token: Token): MarkdownBlock | null {
  if (token.type === "space" || token.type === "def") return null;
  if (token.type !== "code") return { kind: "html", html: sanitize(marked.parser([token])) };
  const { raw, text, lang } = token as Tokens.Code;
  const fence = /^ {0,3}(`{3,}|~{3,})/.exec(raw)?.[1];
  const closed =
    fence === undefined || (raw.trimEnd().split("\n").length > 1 && raw.trimEnd().endsWith(fence));
  return { kind: "code", code: text, language: (lang ?? "").split(/\s/, 1)[0] ?? "", closed };
}

/** Return HTML without anything that runs, loads or leaves the page. */
export function sanitize(html: string): SafeHtml {
  const safe: string = DOMPurify.sanitize(html, {
    USE_PROFILES: { html: true },
    FORBID_TAGS: [
      "style",
      "form",
      "button",
      "textarea",
      "select",
      "option",
      "audio",
      "video",
      "picture",
    ],
    FORBID_ATTR: ["style", "id", "name", "srcset", "background"],
    ALLOW_DATA_ATTR: false,
  });
  return safe as SafeHtml;
}

function escapeTags(text: string): string {
  return PLAIN_TAG.test(text.trim()) ? text : escapeText(text);
}

export function escapeText(text: string): string {
  const entities: Record<string, string> = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
  };
  return text.replace(/[&<>"]/g, (character) => entities[character] ?? character);
}

function picture(href: string, text: string): string {
  return `<img src="${escapeText(href)}" alt="${escapeText(text)}">`;
}

/** The page loads nothing from other hosts, so an image of another host is a link. */
function link(href: string, text: string): string {
  return `<a href="${escapeText(href)}">${escapeText(text || href)}</a>`;
}

function math(tex: string, display: boolean): string {
  return `<span class="math${display ? " display" : ""}">${escapeText(tex)}</span>`;
}

function displayMath() {
  return {
    name: "displayMath",
    level: "block" as const,
    start: (source: string) => /\$\$|\\\[/.exec(source)?.index,
    tokenizer(source: string) {
      const found = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/.exec(source);
      if (!found) return undefined;
      return { type: "displayMath", raw: found[0], text: (found[1] ?? found[2] ?? "").trim() };
    },
    renderer: (token: Tokens.Generic) => `<p>${math(String(token["text"]), true)}</p>`,
  };
}

function inlineMath() {
  return {
    name: "inlineMath",
    level: "inline" as const,
    start: (source: string) => /\$|\\\(/.exec(source)?.index,
    tokenizer(source: string) {
      // As Pandoc: no space inside the dollars, and no digit after them, so that prices stay text.
      const found = /^(?:\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)|\\\((.+?)\\\))/.exec(source);
      if (!found) return undefined;
      return { type: "inlineMath", raw: found[0], text: found[1] ?? found[2] ?? "" };
    },
    renderer: (token: Tokens.Generic) => math(String(token["text"]), false),
  };
}
