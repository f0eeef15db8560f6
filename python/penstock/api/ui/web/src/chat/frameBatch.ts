/** Hands over values once per frame, so that a fast stream is drawn at the rate of the screen. */

/** A hidden page has no frames. */
const HIDDEN_MS = 250;

export class FrameBatch<T> {
  #waiting: T[] = [];
  #frame = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #apply: (value: T) => void;

  /** `apply`: called for each value, in order. */
  constructor(apply: (value: T) => void) {
    this.#apply = apply;
  }

  add(value: T): void {
    this.#waiting.push(value);
    if (this.#waiting.length > 1) return;
    this.#frame = requestAnimationFrame(() => this.flush());
    this.#timer = setTimeout(() => this.flush(), HIDDEN_MS);
  }

  /** Hand over what waits, now. */
  flush(): void {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    const values = this.#waiting;
    this.#waiting = [];
    for (const value of values) this.#apply(value);
  }
}
