import { expect, test } from "vitest";

import { applyEvent } from "./events";
import type { Message } from "./types";

function running(): Message {
  return {
    id: "m",
    chat_id: "c",
    parent: "u",
    role: "assistant",
    created_at: 0,
    status: "running",
    blocks: [],
    info: {},
  };
}

test("events fold into the message that the server keeps", () => {
  const message = running();
  const choice = { text: "b", logprob: -0.1, top: [] };
  applyEvent(message, {
    event: "block",
    data: { index: 0, block: { type: "reasoning", text: "" } },
  });
  applyEvent(message, { event: "append", data: { index: 0, text: "hm" } });
  applyEvent(message, { event: "block", data: { index: 1, block: { type: "text", text: "a" } } });
  applyEvent(message, { event: "append", data: { index: 1, text: "b", tokens: [choice] } });
  applyEvent(message, { event: "info", data: { status: "done", info: { completion_tokens: 2 } } });
  expect(message).toEqual({
    ...running(),
    status: "done",
    blocks: [
      { type: "reasoning", text: "hm" },
      { type: "text", text: "ab", tokens: [choice] },
    ],
    info: { completion_tokens: 2 },
  });
});

test("a whole message replaces the one before, after a lost connection", () => {
  const message = { ...running(), blocks: [{ type: "text" as const, text: "half" }] };
  const whole = { ...running(), blocks: [{ type: "text" as const, text: "half and more" }] };
  applyEvent(message, { event: "message", data: whole });
  expect(message).toEqual(whole);
});

test("text for a block that is absent is dropped", () => {
  const message = running();
  applyEvent(message, { event: "append", data: { index: 3, text: "x" } });
  expect(message).toEqual(running());
});
