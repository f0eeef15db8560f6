/** Tells users of screen readers about changes that others see. */

let text = $state("");

export const announcer = {
  get text(): string {
    return text;
  },
};

/** Let screen readers say `said` when they have finished their sentence. */
export function announce(said: string): void {
  text = said;
}
