/** Measures the rate of something that grows. */

const WINDOW_S = 6;

export class RateMeter {
  #samples: { time: number; value: number }[] = [];

  /**
   * Add a sample and return the growth per second over the last seconds; null if that is unknown.
   * `time`: in seconds, from any clock.
   */
  add(time: number, value: number): number | null {
    if (value < (this.#samples.at(-1)?.value ?? 0)) this.#samples = [];
    this.#samples.push({ time, value });
    while (this.#samples.length > 2 && time - (this.#samples[0]?.time ?? time) > WINDOW_S) {
      this.#samples.shift();
    }
    const first = this.#samples[0];
    if (first === undefined || time <= first.time) return null;
    return (value - first.value) / (time - first.time);
  }
}
