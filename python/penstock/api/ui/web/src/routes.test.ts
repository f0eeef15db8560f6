import { expect, test } from "vitest";

import { addressOf, parseRoute, type Route } from "./routes";

const ROUTES: [string, Route][] = [
  ["/ui/", { name: "chat", id: null }],
  ["/ui/chats/abc", { name: "chat", id: "abc" }],
  ["/ui/chats/a%2Fb", { name: "chat", id: "a/b" }],
  ["/ui/models", { name: "models" }],
  ["/ui/api-examples", { name: "api-examples" }],
];

test.each(ROUTES)("%s is the address of its route", (path, route) => {
  expect(parseRoute(path)).toEqual(route);
  expect(addressOf(route)).toBe(path);
});

test.each(["/ui/chats/", "/ui/nothing", "/ui/chats/a/b", "/ui/chats/%E0%A4%A"])(
  "%s is no page",
  (path) => {
    expect(parseRoute(path)).toEqual({ name: "unknown", path });
  },
);

test("the address without a slash is that of a new chat", () => {
  expect(parseRoute("/ui")).toEqual({ name: "chat", id: null });
});
