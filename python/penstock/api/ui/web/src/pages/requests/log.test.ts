import { expect, test } from "vitest";

import type { RequestEntry } from "../../api/types";
import { filtered, merged, rateOf } from "./log.svelte";

function entry(number: number, values: Partial<RequestEntry> = {}): RequestEntry {
  return {
    number,
    id: `r${number}`,
    time: 1000 + number,
    method: "POST",
    path: "/v1/chat/completions",
    model: "small",
    status: 200,
    outcome: "completed",
    seconds: 1,
    ttft_s: null,
    prompt_tokens: 5,
    completion_tokens: 0,
    ...values,
  };
}

test("requests are listed once, newest first", () => {
  const both = merged([entry(2), entry(1)], [entry(2), entry(3)]);
  expect(both.map(({ number }) => number)).toEqual([3, 2, 1]);
});

test("requests of two processes keep their order in time", () => {
  const both = merged([entry(9)], [entry(1, { id: "other", time: 1010 })]);
  expect(both.map(({ id }) => id)).toEqual(["other", "r9"]);
});

test("at most 500 requests are kept", () => {
  const many = Array.from({ length: 600 }, (_, index) => entry(index));
  const kept = merged([], many);
  expect([kept.length, kept[0]?.number]).toEqual([500, 599]);
});

test("filters narrow the list", () => {
  const all = [
    entry(1),
    entry(2, { path: "/v1/models", model: "none" }),
    entry(3, { status: 404 }),
    entry(4, { status: 503 }),
    entry(5, { outcome: "client_disconnected" }),
  ];
  const numbers = (filter: object) =>
    filtered(all, { path: "", model: "", status: "", ...filter }).map(({ number }) => number);
  expect(numbers({})).toEqual([1, 2, 3, 4, 5]);
  expect(numbers({ path: "/v1/models" })).toEqual([2]);
  expect(numbers({ model: "none" })).toEqual([2]);
  expect(numbers({ status: "ok" })).toEqual([1, 2]);
  expect(numbers({ status: "failed" })).toEqual([3, 4, 5]);
  expect(numbers({ status: "4" })).toEqual([3]);
  expect(numbers({ status: "5" })).toEqual([4]);
});

test("the rate counts tokens after the first", () => {
  expect(rateOf(entry(1, { seconds: 3, ttft_s: 1, completion_tokens: 21 }))).toBe(10);
  expect(rateOf(entry(1, { completion_tokens: 21 }))).toBeNull();
});
