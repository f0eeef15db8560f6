/** Values that the browser keeps, the same in all tabs. */

const PREFIX = "penstock.";

/** A value in the browser's storage. Without storage (a private window) it lasts until a reload. */
export class Stored<T> {
  #value: T = $state() as T;
  readonly #name: string;

  /** `valid`: whether a value that was read is one of this version of the page. */
  constructor(name: string, fallback: T, valid: (value: unknown) => value is T) {
    this.#name = PREFIX + name;
    this.#value = this.#read(valid) ?? fallback;
    window.addEventListener("storage", (event) => {
      if (event.key === this.#name) this.#value = this.#read(valid) ?? fallback;
    });
  }

  get value(): T {
    return this.#value;
  }

  set value(value: T) {
    this.#value = value;
    try {
      localStorage.setItem(this.#name, JSON.stringify(value));
    } catch {
      // The storage is full or forbidden.
    }
  }

  #read(valid: (value: unknown) => value is T): T | undefined {
    try {
      const value: unknown = JSON.parse(localStorage.getItem(this.#name) ?? "null");
      return valid(value) ? value : undefined;
    } catch {
      return undefined;
    }
  }
}

export const isBoolean = (value: unknown): value is boolean => typeof value === "boolean";
export const isText = (value: unknown): value is string => typeof value === "string";

/** Return a check for one of `values`. */
export function oneOf<T extends string>(...values: T[]): (value: unknown) => value is T {
  return (value): value is T => values.includes(value as T);
}
