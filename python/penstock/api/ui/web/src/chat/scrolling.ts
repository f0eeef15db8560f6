/** Places in chats to which a person comes back from another chat or page. */

/** `message`: the id of the first message in view; `offset`: how far it is above the edge. */
interface Place {
  message: string;
  offset: number;
}

const SETTLING_FRAMES = 12;

const places = new Map<string, Place>();

/** Remember the place to which a chat was scrolled; a chat left at its end opens at its end. */
export function keepPlace(chat: string, view: HTMLElement, atEnd: boolean): void {
  places.delete(chat);
  if (atEnd) return;
  const edge = view.getBoundingClientRect().top;
  const articles = view.querySelectorAll<HTMLElement>("article");
  const article = articles[firstBelow(articles, edge)];
  const message = article?.dataset["message"];
  if (!article || message === undefined) return;
  places.set(chat, { message, offset: edge - article.getBoundingClientRect().top });
}

/** Return the id of the message at which a chat was left. */
export function placeOf(chat: string | undefined): string | undefined {
  return chat === undefined ? undefined : places.get(chat)?.message;
}

/** Return the index of the first element that ends below `edge`; the elements are in order. */
function firstBelow(elements: NodeListOf<HTMLElement>, edge: number): number {
  let low = 0;
  let high = elements.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((elements[middle]?.getBoundingClientRect().bottom ?? edge) > edge) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * Scroll to the place at which the chat was left. Returns whether there is one; `done` is called a
 * few frames later, when the place no longer moves.
 */
export function returnToPlace(chat: string, view: HTMLElement, done: () => void): boolean {
  const place = places.get(chat);
  const article = view.querySelector<HTMLElement>(`[data-message="${place?.message ?? ""}"]`);
  if (!place || !article) return false;
  settle(view, article, place.offset, SETTLING_FRAMES, done);
  return true;
}

/** Put the edge of the view `offset` below the top of an article. Articles out of view have only an
 * estimated height, so the place is found again after they are drawn. */
function settle(
  view: HTMLElement,
  article: HTMLElement,
  offset: number,
  frames: number,
  done: () => void,
): void {
  const edge = view.getBoundingClientRect().top;
  view.scrollTop += article.getBoundingClientRect().top - edge + offset;
  if (frames === 0) return done();
  requestAnimationFrame(() => settle(view, article, offset, frames - 1, done));
}

/** Scroll to the question before (-1) or after (1) the one at the upper edge. */
export function scrollToQuestion(view: HTMLElement, step: 1 | -1): void {
  const edge = view.getBoundingClientRect().top;
  const questions = [...view.querySelectorAll<HTMLElement>("article[data-role=user]")];
  const top = (one: HTMLElement) => one.getBoundingClientRect().top - edge;
  const margin = 40;
  const target =
    step < 0
      ? questions.findLast((one) => top(one) < -margin / 4)
      : questions.find((one) => top(one) > margin);
  if (!target && step > 0) view.scrollTop = view.scrollHeight;
  target?.scrollIntoView({ block: "start", behavior: "instant" });
}
