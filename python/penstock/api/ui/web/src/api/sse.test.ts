import { expect, test } from "vitest";

import { EventParser } from "./sse";

test("events are cut at empty lines, wherever the pieces end", () => {
  const text = ': keep-alive\n\nevent: append\ndata: {"a":\ndata: 1}\n\ndata: x\r\n\r\n';
  for (let at = 0; at <= text.length; at += 1) {
    const parser = new EventParser();
    const events = [...parser.push(text.slice(0, at)), ...parser.push(text.slice(at))];
    expect(events).toEqual([
      { event: "append", data: '{"a":\n1}' },
      { event: "message", data: "x" },
    ]);
  }
});

test("an event without its empty line is not reported", () => {
  expect(new EventParser().push("event: info\ndata: {}\n")).toEqual([]);
});

test("an event without data is not reported and leaves nothing to the next one", () => {
  expect(new EventParser().push("event: info\n\ndata: x\n\n")).toEqual([
    { event: "message", data: "x" },
  ]);
});
