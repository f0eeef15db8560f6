/** Choices of a person about the page itself. Settings of a chat are kept with the chat. */

import type { ChatSettings } from "../api/types";
import { isBoolean, Stored } from "./storage.svelte";

const isObject = (value: unknown): value is ChatSettings =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export const preferences = {
  /** Whether the sidebar is shown on a wide screen. */
  sidebar: new Stored("sidebar", true, isBoolean),
  /** Whether Enter sends a message; else it starts a line, and Ctrl+Enter sends. */
  enterSends: new Stored("enter-sends", true, isBoolean),
  /** Whether answers with log-probabilities show their tokens instead of Markdown. */
  showTokens: new Stored("show-tokens", true, isBoolean),
  /** Whether long lines of code are wrapped instead of scrolled. */
  wrapCode: new Stored("wrap-code", false, isBoolean),
  /** The settings with which a new chat starts. */
  newChat: new Stored<ChatSettings>("new-chat", {}, isObject),
};
