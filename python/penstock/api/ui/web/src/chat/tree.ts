/** A chat as a tree: each message has a parent, and the messages from a root to a leaf are a branch. */

import type { Message } from "../api/types";

/** Return the branch that ends with the message `tail`, from its root; empty for an unknown tail. */
export function branchTo(messages: ReadonlyMap<string, Message>, tail: string | null): Message[] {
  const branch: Message[] = [];
  const seen = new Set<string>();
  for (let id = tail; id !== null && !seen.has(id);) {
    const message = messages.get(id);
    if (!message) break;
    seen.add(id);
    branch.push(message);
    id = message.parent;
  }
  return branch.reverse();
}

/** Return the messages with the same parent as `message`, itself included, oldest first. */
export function siblingsOf(messages: Iterable<Message>, message: Message): Message[] {
  const { parent, role } = message;
  return [...messages].filter((other) => other.parent === parent && other.role === role);
}

/** Return the newest leaf below `message`, or `message` itself if nothing follows it. */
export function newestLeaf(messages: Iterable<Message>, message: Message): Message {
  const children = new Map<string, Message>();
  for (const other of messages) if (other.parent !== null) children.set(other.parent, other);
  let leaf = message;
  for (let next = children.get(leaf.id); next; next = children.get(leaf.id)) leaf = next;
  return leaf;
}

/** Return the texts of a message, as a person copies them. */
export function textOf(message: Message): string {
  return message.blocks
    .flatMap((block) => (block.type === "text" ? [block.text] : []))
    .join("\n\n");
}
