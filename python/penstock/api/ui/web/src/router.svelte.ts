/** The current route, which follows the address of the page. */

import { addressOf, BASE, parseRoute, type Route } from "./routes";

let current = $state<Route>(parseRoute(location.pathname));
let lastChat = chatOf(current);

export const router = {
  get route(): Route {
    return current;
  },

  /** The id of the chat that was shown last; null if it was a new chat, or none was shown. */
  get lastChat(): string | null {
    return lastChat;
  },

  /** Go to another route. */
  go(route: Route): void {
    this.show(route, "push");
  },

  /** Change the address without a new entry in the browser's history. */
  replace(route: Route): void {
    this.show(route, "replace");
  },

  show(route: Route, how: "push" | "replace"): void {
    const address = addressOf(route);
    if (how === "push" && address !== location.pathname) history.pushState(null, "", address);
    if (how === "replace") history.replaceState(null, "", address);
    enter(route);
  },
};

/** Follow the browser's buttons, and links to addresses of the page. Returns a function that stops. */
export function startRouter(): () => void {
  const done = new AbortController();
  const { signal } = done;
  window.addEventListener("popstate", () => enter(parseRoute(location.pathname)), { signal });
  document.addEventListener("click", followLink, { signal });
  return () => done.abort();
}

function enter(route: Route): void {
  current = route;
  if (route.name === "chat") lastChat = chatOf(route);
}

function chatOf(route: Route): string | null {
  return route.name === "chat" ? route.id : null;
}

function followLink(event: MouseEvent): void {
  const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if (!plain || event.altKey || event.defaultPrevented) return;
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  if (!link || link.target !== "" || link.hasAttribute("download")) return;
  const url = new URL(link.href, location.href);
  const ours = url.pathname === BASE || url.pathname.startsWith(BASE);
  if (url.origin !== location.origin || !ours || url.pathname.startsWith(`${BASE}api/`)) return;
  event.preventDefault();
  router.go(parseRoute(url.pathname));
}
