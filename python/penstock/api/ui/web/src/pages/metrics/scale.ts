/** The axes of a plot. */

/** The periods that a plot can show, in seconds. */
const PERIODS_S = [60, 120, 300, 900];

/** Return the end of an axis from 0 that holds `largest`: 1, 2 or 4 times a power of ten. */
export function niceEnd(largest: number): number {
  if (!(largest > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(largest));
  const factor = [1, 2, 4, 10].find((step) => step * power >= largest * 0.999999) ?? 10;
  return factor * power;
}

/** Return the shortest period that holds points of `age` seconds, at most 15 minutes. */
export function periodOf(age: number): number {
  return PERIODS_S.find((period) => period >= age) ?? 900;
}
