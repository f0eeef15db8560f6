/** Colours code. The library and its languages are loaded when the first code is shown. */

import type { HLJSApi } from "highlight.js";

import { type SafeHtml, sanitize } from "./parse";

let loading: Promise<HLJSApi> | undefined;

/** Return code as HTML with colours, or null if its language is unknown. */
export async function highlight(code: string, language: string): Promise<SafeHtml | null> {
  loading ??= import("highlight.js/lib/common").then((module) => module.default);
  const library = await loading;
  if (!library.getLanguage(language)) return null;
  return sanitizeTokens(library.highlight(code, { language, ignoreIllegals: true }).value);
}

/** The library writes spans with classes of its own, which `sanitize` would drop. */
function sanitizeTokens(html: string): SafeHtml {
  const marked = html.replace(/<span class="hljs-([\w- .]+)">/g, (_, name: string) => {
    return `<span class="language-${name.split(/[ .]/, 1)[0]}">`;
  });
  return sanitize(marked);
}
