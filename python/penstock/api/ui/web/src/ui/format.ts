/** Numbers, sizes and times as a person reads them. */

const UNITS = ["B", "kB", "MB", "GB", "TB"];
const DAY_S = 86_400;

/** Return a size such as "1.4 GB". */
export function formatBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** Return a number with separators between thousands. */
export function formatNumber(value: number, digits = 0): string {
  return value.toLocaleString(undefined, { maximumFractionDigits: digits });
}

/** Return a duration such as "45 ms", "2.3 s" or "3 min 20 s". */
export function formatSeconds(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** Return a date and time. `time`: Unix seconds. */
export function formatTime(time: number): string {
  return new Date(time * 1000).toLocaleString(undefined, {
    dateStyle: "medium",
    timeStyle: "short",
  });
}

/** Return the heading under which a list shows something of the time `time`. */
export function formatDay(time: number, now: number = Date.now() / 1000): string {
  const midnight = new Date(now * 1000).setHours(0, 0, 0, 0) / 1000;
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY_S) return "Yesterday";
  if (time >= midnight - 6 * DAY_S) return "This week";
  if (time >= midnight - 29 * DAY_S) return "This month";
  return "Older";
}
