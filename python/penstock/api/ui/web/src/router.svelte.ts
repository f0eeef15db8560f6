/** The current route, which follows the address of the page. */

import { addressOf, BASE, parseRoute, type Route } from "./routes";

let current = $state<Route>(parseRoute(location.pathname));

export const router = {
  get route(): Route {
    return current;
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
    current = route;
  },
};

/** Follow the browser's buttons, and links to addresses of the page. Returns a function that stops. */
export function startRouter(): () => void {
  const done = new AbortController();
  const { signal } = done;
  window.addEventListener("popstate", () => (current = parseRoute(location.pathname)), { signal });
  document.addEventListener("click", followLink, { signal });
  return () => done.abort();
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
