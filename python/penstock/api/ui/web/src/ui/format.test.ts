import { expect, test } from "vitest";

import { formatBytes, formatDay, formatSeconds } from "./format";

test.each([
  [0, "0 B"],
  [999, "999 B"],
  [1_400_000_000, "1.4 GB"],
  [123_456_789, "123 MB"],
])("%d bytes are %s", (bytes, text) => {
  expect(formatBytes(bytes)).toBe(text);
});

test.each([
  [0.045, "45 ms"],
  [2.31, "2.3 s"],
  [45, "45 s"],
  [200, "3 min 20 s"],
  [119.7, "2 min 0 s"],
])("%d seconds are %s", (seconds, text) => {
  expect(formatSeconds(seconds)).toBe(text);
});

test("days begin at midnight of the reader's clock", () => {
  const now = new Date(2026, 0, 15, 0, 30).getTime() / 1000;
  expect(formatDay(now - 60, now)).toBe("Today");
  expect(formatDay(now - 3600, now)).toBe("Yesterday");
  expect(formatDay(now - 5 * 86_400, now)).toBe("This week");
  expect(formatDay(now - 20 * 86_400, now)).toBe("This month");
  expect(formatDay(now - 40 * 86_400, now)).toBe("Older");
});
