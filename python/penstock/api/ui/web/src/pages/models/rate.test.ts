import { expect, test } from "vitest";

import { RateMeter } from "./rate";

test("one sample has no rate", () => {
  expect(new RateMeter().add(10, 500)).toBeNull();
});

test("the rate is that of the last seconds", () => {
  const meter = new RateMeter();
  meter.add(0, 0);
  expect(meter.add(1, 100)).toBe(100);
  for (let time = 2; time <= 20; time++) meter.add(time, 100 + (time - 1) * 10);
  expect(meter.add(21, 300)).toBeCloseTo(10);
});

test("a value that falls starts anew", () => {
  const meter = new RateMeter();
  meter.add(0, 1000);
  expect(meter.add(1, 0)).toBeNull();
  expect(meter.add(2, 50)).toBe(50);
});
