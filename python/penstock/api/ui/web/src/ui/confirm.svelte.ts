/** Asks a person before something that cannot be undone. */

export interface Question {
  title: string;
  text: string;
  /** The text of the button that agrees, a verb: "Delete". */
  action: string;
  danger?: boolean;
}

let question = $state.raw<Question | null>(null);
let answered: ((agreed: boolean) => void) | null = null;

/** Show a dialog and return whether the person agreed. */
export function confirm(asked: Question): Promise<boolean> {
  answered?.(false);
  question = asked;
  return new Promise((resolve) => (answered = resolve));
}

/** The question that Confirm.svelte shows. */
export const pending = {
  get question(): Question | null {
    return question;
  },
  answer(agreed: boolean): void {
    question = null;
    answered?.(agreed);
    answered = null;
  },
};
