/** Keyboard shortcuts of the page, and their list for the dialog that explains them. */

import { onMount } from "svelte";

export interface Shortcut {
  /** Such as "mod+k" or "mod+shift+o"; `mod` is Command on a Mac, else Control. */
  keys: string;
  label: string;
  run: () => void;
  /** Whether the shortcut works now; absent: always. */
  when?: () => boolean;
}

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);

let active = $state.raw<Shortcut[]>([]);

export const shortcuts = {
  get list(): readonly Shortcut[] {
    return active;
  },
};

/** Offer shortcuts while the component that calls this is on the page. */
export function useShortcuts(...offered: Shortcut[]): void {
  onMount(() => {
    active = [...active, ...offered];
    return () => (active = active.filter((shortcut) => !offered.includes(shortcut)));
  });
}

/** Run the shortcut of a key event, if there is one. */
export function runShortcut(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.isComposing) return;
  if (document.querySelector("dialog[open]")) return;
  const pressed = keysOf(event);
  const found = active.find(({ keys, when }) => keys === pressed && (when?.() ?? true));
  if (!found) return;
  event.preventDefault();
  found.run();
}

/** Return the keys as a person reads them: "Ctrl+K", or "⌘K" on a Mac. */
export function describeKeys(keys: string): string {
  const parts = keys.split("+").map((part) => NAMES[part] ?? part.toUpperCase());
  return MAC ? parts.join("") : parts.join("+");
}

const NAMES: Record<string, string> = MAC
  ? { mod: "⌘", shift: "⇧", alt: "⌥", enter: "↩", escape: "Esc" }
  : { mod: "Ctrl", shift: "Shift", alt: "Alt", enter: "Enter", escape: "Esc" };

function keysOf(event: KeyboardEvent): string {
  const parts = [];
  if (MAC ? event.metaKey : event.ctrlKey) parts.push("mod");
  if (event.shiftKey) parts.push("shift");
  if (event.altKey) parts.push("alt");
  return [...parts, event.key.toLowerCase()].join("+");
}
