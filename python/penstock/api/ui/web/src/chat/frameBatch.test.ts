import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { FrameBatch } from "./frameBatch";

let frames: (() => void)[] = [];

beforeEach(() => {
  vi.useFakeTimers();
  frames = [];
  vi.stubGlobal("requestAnimationFrame", (call: () => void) => frames.push(call));
  vi.stubGlobal("cancelAnimationFrame", (id: number) => frames.splice(id - 1, 1));
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

it("hands over all values of a frame in order", () => {
  const seen: number[] = [];
  const batch = new FrameBatch<number>((value) => seen.push(value));
  batch.add(1);
  batch.add(2);
  expect(seen).toEqual([]);
  expect(frames).toHaveLength(1);
  frames[0]?.();
  expect(seen).toEqual([1, 2]);
  batch.add(3);
  expect(frames).toHaveLength(1);
});

it("hands over without frames while the page is hidden", () => {
  const seen: number[] = [];
  const batch = new FrameBatch<number>((value) => seen.push(value));
  batch.add(1);
  vi.advanceTimersByTime(250);
  expect(seen).toEqual([1]);
});
