/** Reads Prometheus' text format. */

export interface Sample {
  labels: Readonly<Record<string, string>>;
  value: number;
}

/** The name of a metric -> its samples. */
export type Samples = ReadonlyMap<string, readonly Sample[]>;

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$/;
const LABEL = /([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)",?/g;

/** Return the samples of a text. Comments and lines that are no samples are left out. */
export function parseMetrics(text: string): Samples {
  const found = new Map<string, Sample[]>();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const [, name, labels, value] = LINE.exec(line) ?? [];
    if (name === undefined || value === undefined) continue;
    const sample = { labels: parseLabels(labels ?? ""), value: parseValue(value) };
    const samples = found.get(name);
    if (samples) samples.push(sample);
    else found.set(name, [sample]);
  }
  return found;
}

/** Return the sum of the samples of a metric that `wanted` accepts; 0 without samples. */
export function sumOf(
  samples: Samples,
  name: string,
  wanted: (labels: Sample["labels"]) => boolean = () => true,
): number {
  let sum = 0;
  for (const { labels, value } of samples.get(name) ?? []) if (wanted(labels)) sum += value;
  return sum;
}

function parseValue(text: string): number {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}

function parseLabels(text: string): Record<string, string> {
  const labels: Record<string, string> = {};
  for (const [, name, value] of text.matchAll(LABEL)) {
    if (name !== undefined && value !== undefined) labels[name] = unescape(value);
  }
  return labels;
}

function unescape(value: string): string {
  return value.replace(/\\(.)/g, (_, sign: string) => (sign === "n" ? "\n" : sign));
}
