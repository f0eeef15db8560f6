/** Typesets the formulas of rendered Markdown. KaTeX is loaded when the first formula is shown. */

import type { Attachment } from "svelte/attachments";

let loading: Promise<typeof import("katex")> | undefined;

async function katex(): Promise<typeof import("katex")> {
  loading ??= Promise.all([import("katex"), import("katex/dist/katex.min.css")]).then(
    ([library]) => library,
  );
  return loading;
}

/** Replace the formulas in an element by their drawings. A wrong formula stays as text. */
export const formulas: Attachment<HTMLElement> = (element) => {
  const found = [...element.querySelectorAll<HTMLElement>(".math")];
  if (found.length > 0) void typeset(found);
};

async function typeset(found: HTMLElement[]): Promise<void> {
  const { default: library } = await katex();
  for (const place of found) {
    const tex = place.textContent ?? "";
    const displayMode = place.classList.contains("display");
    try {
      library.render(tex, place, { displayMode, throwOnError: true, maxExpand: 1000, maxSize: 50 });
    } catch {
      place.textContent = tex;
    }
  }
}
