import { describe, expect, test } from "vitest";

import { between, histogramOf, quantile } from "./histogram";
import { History } from "./history.svelte";
import { parseMetrics, sumOf } from "./parse";
import { niceEnd, periodOf } from "./scale";
import { pointOf, snapshotOf } from "./snapshot";

const TEXT = `# HELP http_requests_total Requests answered.
# TYPE http_requests_total counter
http_requests_total{method="GET",path="/a",status="200"} 5.0
http_requests_total{method="GET",path="/\\"b\\"{x}",status="404"} 2.0
service_engine_up 1.0
service_sequences_running 3.0
service_time_to_first_token_seconds_bucket{le="0.1",model="a"} 1.0
service_time_to_first_token_seconds_bucket{le="0.2",model="a"} 3.0
service_time_to_first_token_seconds_bucket{le="+Inf",model="a"} 4.0
service_time_to_first_token_seconds_bucket{le="0.1",model="b"} 1.0
service_time_to_first_token_seconds_bucket{le="0.2",model="b"} 1.0
service_time_to_first_token_seconds_bucket{le="+Inf",model="b"} 1.0
`;

function snapshot(time: number, values: Record<string, number>) {
  const lines = Object.entries({ service_engine_up: 1, ...values });
  const text = lines.map(([name, value]) => `${name} ${value}\n`).join("");
  return snapshotOf(parseMetrics(text), time, time);
}

test("samples are read with their labels", () => {
  const samples = parseMetrics(TEXT);
  expect(samples.get("http_requests_total")?.[1]).toEqual({
    labels: { method: "GET", path: '/"b"{x}', status: "404" },
    value: 2,
  });
  expect(sumOf(samples, "http_requests_total")).toBe(7);
  expect(sumOf(samples, "absent")).toBe(0);
});

describe("histograms", () => {
  const whole = histogramOf(parseMetrics(TEXT), "service_time_to_first_token_seconds");

  test("are added up over labels", () => {
    expect(whole).toEqual({ bounds: [0.1, 0.2, Infinity], counts: [2, 4, 5] });
  });

  test("give quantiles between the bounds of a bucket", () => {
    expect(quantile(whole, 0.4)).toBeCloseTo(0.1);
    expect(quantile(whole, 0.6)).toBeCloseTo(0.15);
    expect(quantile(whole, 0.99)).toBe(0.2);
  });

  test("without values have no quantiles", () => {
    expect(quantile({ bounds: [1, Infinity], counts: [0, 0] }, 0.5)).toBeNull();
    expect(quantile({ bounds: [], counts: [] }, 0.5)).toBeNull();
  });

  test("of the time between two snapshots leave older values out", () => {
    const before = { bounds: [0.1, 0.2, Infinity], counts: [2, 2, 2] };
    expect(between(before, whole)?.counts).toEqual([0, 2, 3]);
    expect(between({ bounds: [], counts: [] }, whole)).toEqual(whole);
    expect(between(whole, before)).toBeNull();
  });
});

describe("points", () => {
  const before = snapshot(100, {
    service_tokens_processed_total: 1000,
    service_tokens_generated_total: 400,
    service_prefix_cache_lookups_total: 10,
    service_prefix_cache_hits_total: 5,
  });
  const after = snapshot(102, {
    service_tokens_processed_total: 1200,
    service_tokens_generated_total: 440,
    service_prefix_cache_lookups_total: 14,
    service_prefix_cache_hits_total: 8,
    service_kv_cache_blocks_used: 25,
    service_kv_cache_blocks_total: 100,
  });

  test("have rates and shares", () => {
    const point = pointOf(after, before, before);
    expect(point).toMatchObject({ generated: 20, read: 80, hitRate: 0.75, kv: 0.25 });
    expect(point.encoderHitRate).toBeNull();
  });

  test("have no rates after a restart", () => {
    expect(pointOf(before, after, after)).toMatchObject({ generated: null, hitRate: null });
  });

  test("have no figures of an engine that does not answer", () => {
    const down = snapshotOf(parseMetrics("service_engine_up 0\n"), 104, 104);
    expect(pointOf(down, after, after)).toMatchObject({ running: null, kv: null, generated: null });
  });
});

test("the history keeps the last 15 minutes", () => {
  const history = new History();
  for (let time = 0; time <= 1200; time += 3) history.add(snapshot(time, {}));
  expect(history.points.length).toBe(301);
  expect(history.points[0]?.time).toBe(300);
});

test("figures do not cover the time in which the page was hidden", () => {
  const history = new History();
  history.add(snapshot(0, { service_tokens_generated_total: 0 }));
  history.add(snapshot(3, { service_tokens_generated_total: 30 }));
  history.add(snapshot(600, { service_tokens_generated_total: 9000 }));
  history.add(snapshot(603, { service_tokens_generated_total: 9060 }));
  expect(history.points.map(({ generated }) => generated)).toEqual([10, 20]);
});

test.each([
  [0, 1],
  [0.3, 0.4],
  [1, 1],
  [37, 40],
  [51, 100],
  [1001, 2000],
])("an axis for %d ends at %d", (largest, end) => {
  expect(niceEnd(largest)).toBeCloseTo(end);
});

test.each([
  [0, 60],
  [61, 120],
  [290, 300],
  [901, 900],
])("points of %d seconds are shown over %d seconds", (age, period) => {
  expect(periodOf(age)).toBe(period);
});
