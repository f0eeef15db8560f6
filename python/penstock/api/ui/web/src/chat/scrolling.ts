/** Places in chats to which a person comes back from another chat or page. */

/** `article`: the number of the first message in view; `offset`: how far it is above the edge. */
interface Place {
  article: number;
  offset: number;
}

const places = new Map<string, Place>();

/** Remember the place at which a chat is left; a chat left at its end opens at its end. */
export function keepPlace(chat: string, view: HTMLElement, atEnd: boolean): void {
  const top = view.getBoundingClientRect().top;
  const articles = [...view.querySelectorAll("article")];
  const article = articles.findIndex((one) => one.getBoundingClientRect().bottom > top);
  if (atEnd || article < 0) places.delete(chat);
  else {
    const offset = top - (articles[article]?.getBoundingClientRect().top ?? top);
    places.set(chat, { article, offset });
  }
}

/** Scroll to the place at which the chat was left. Returns whether there is one. */
export function returnToPlace(chat: string, view: HTMLElement): boolean {
  const place = places.get(chat);
  const article = place && view.querySelectorAll("article")[place.article];
  if (!article) return false;
  article.scrollIntoView({ block: "start", behavior: "instant" });
  view.scrollTop += place.offset;
  return true;
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
