/** The colours of the page: those of the system, unless a person chose others. */

import { oneOf, Stored } from "./storage.svelte";

export type Theme = "system" | "light" | "dark";

const stored = new Stored<Theme>("theme", "system", oneOf("system", "light", "dark"));

export const theme = {
  get value(): Theme {
    return stored.value;
  },
  set value(value: Theme) {
    stored.value = value;
  },
};

/** Keep the document in the chosen colours. Call it once, in the root of the page. */
export function applyTheme(): void {
  $effect.pre(() => {
    const root = document.documentElement;
    if (stored.value === "system") delete root.dataset["theme"];
    else root.dataset["theme"] = stored.value;
  });
}
