/** The addresses of the page. */

export type Route =
  | { name: "chat"; id: string | null }
  | { name: "models" }
  | { name: "adapters" }
  | { name: "metrics" }
  | { name: "requests" }
  | { name: "api-examples" }
  | { name: "unknown"; path: string };

export type PageName = Exclude<Route["name"], "chat" | "unknown">;

export const BASE = "/ui/";

const PAGES: readonly string[] = [
  "models",
  "adapters",
  "metrics",
  "requests",
  "api-examples",
] satisfies PageName[];

/** Return the route of a path such as `/ui/chats/abc`. */
export function parseRoute(path: string): Route {
  const rest = path.startsWith(BASE) ? path.slice(BASE.length).replace(/\/$/, "") : "";
  if (rest === "") return { name: "chat", id: null };
  if (PAGES.includes(rest)) return { name: rest as PageName };
  const id = /^chats\/([^/]+)$/.exec(rest)?.[1];
  if (id === undefined) return { name: "unknown", path };
  try {
    return { name: "chat", id: decodeURIComponent(id) };
  } catch {
    return { name: "unknown", path };
  }
}

/** Return the address of a route. */
export function addressOf(route: Route): string {
  switch (route.name) {
    case "chat":
      return route.id === null ? BASE : `${BASE}chats/${encodeURIComponent(route.id)}`;
    case "unknown":
      return route.path;
    default:
      return BASE + route.name;
  }
}
