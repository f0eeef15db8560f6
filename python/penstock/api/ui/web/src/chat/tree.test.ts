import { describe, expect, it } from "vitest";

import type { Message } from "../api/types";
import { branchTo, newestLeaf, siblingsOf, textOf } from "./tree";

function message(id: string, parent: string | null, role: "user" | "assistant" = "user"): Message {
  return {
    id,
    chat_id: "c",
    parent,
    role,
    created_at: 0,
    status: "done",
    blocks: [{ type: "text", text: id }],
    info: {},
  };
}

const [q1, a1, q2, a2, b1, other] = [
  message("q1", null),
  message("a1", "q1", "assistant"),
  message("q2", "a1"),
  message("a2", "q2", "assistant"),
  message("b1", "q1", "assistant"),
  message("other", null),
] as const;
const all = [q1, a1, q2, a2, b1, other];
const known = new Map(all.map((one) => [one.id, one]));
const ids = (messages: Message[]) => messages.map((one) => one.id);

describe("branchTo", () => {
  it("returns the messages from the root", () => {
    expect(ids(branchTo(known, "a2"))).toEqual(["q1", "a1", "q2", "a2"]);
  });
  it("is empty for an unknown tail and for none", () => {
    expect(branchTo(known, "absent")).toEqual([]);
    expect(branchTo(known, null)).toEqual([]);
  });
  it("ends if parents form a circle", () => {
    const circle = new Map([
      ["x", message("x", "y")],
      ["y", message("y", "x")],
    ]);
    expect(branchTo(circle, "x")).toHaveLength(2);
  });
});

describe("siblingsOf", () => {
  it("finds the answers to one question", () => {
    expect(ids(siblingsOf(all, a1))).toEqual(["a1", "b1"]);
  });
  it("finds the versions of the first message", () => {
    expect(ids(siblingsOf(all, q1))).toEqual(["q1", "other"]);
  });
});

describe("newestLeaf", () => {
  it("follows the newest children", () => {
    expect(newestLeaf(all, q1).id).toBe("b1");
    expect(newestLeaf(all, a1).id).toBe("a2");
    expect(newestLeaf(all, other).id).toBe("other");
  });
});

it("joins the texts of a message", () => {
  const two = message("a", null);
  two.blocks.push({ type: "reasoning", text: "hm" }, { type: "text", text: "b" });
  expect(textOf(two)).toBe("a\n\nb");
});
