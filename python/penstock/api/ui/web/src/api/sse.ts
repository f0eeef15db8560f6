/** A parser of server-sent events. */

export interface ServerSentEvent {
  event: string;
  data: string;
}

/** Cuts a text that arrives in pieces into events. Comments, ids and retry times are dropped. */
export class EventParser {
  #rest = "";
  #event = "";
  #data: string[] = [];

  /** Return the events that `piece` completes. */
  push(piece: string): ServerSentEvent[] {
    const events: ServerSentEvent[] = [];
    const text = this.#rest + piece;
    // A carriage return at the end may be half of a line break.
    const end = text.endsWith("\r") ? text.length - 1 : text.length;
    const lines = text.slice(0, end).split(/\r\n|\r|\n/);
    this.#rest = (lines.pop() ?? "") + text.slice(end);
    for (const line of lines) {
      const event = this.#line(line);
      if (event) events.push(event);
    }
    return events;
  }

  #line(line: string): ServerSentEvent | null {
    if (line === "") return this.#finish();
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.#event = value;
    if (name === "data") this.#data.push(value);
    return null;
  }

  #finish(): ServerSentEvent | null {
    const event = { event: this.#event || "message", data: this.#data.join("\n") };
    const empty = this.#data.length === 0;
    this.#event = "";
    this.#data = [];
    return empty ? null : event;
  }
}

/** Yield the events of a response's body. Ends with the body; throws if the connection breaks. */
export async function* readEvents(
  body: ReadableStream<Uint8Array>,
  onBytes?: () => void,
): AsyncGenerator<ServerSentEvent> {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onBytes?.();
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
