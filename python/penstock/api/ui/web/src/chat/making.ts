/** Speech and pictures: models that make them answer on endpoints of their own. */

import { send, sendJson } from "../api/client";
import type { ChatSettings, ModelInfo } from "../api/types";
import { withSizes } from "./wav";

/** The kind of answer that a model gives. */
export type AnswerKind = "text" | "speech" | "image";

export const SIZES = ["512x512", "768x768", "1024x1024", "1280x720", "720x1280"];

/** Return the kind of answer that a model gives; models of an unknown kind are asked for text. */
export function answerKind(model: ModelInfo | undefined): AnswerKind {
  if (model?.modalities_out.includes("speech")) return "speech";
  return model?.modalities_out.includes("image") ? "image" : "text";
}

/** Ask a model to speak or to draw `prompt`. Throws ApiError, NetworkError or AbortError. */
export function make(
  kind: Exclude<AnswerKind, "text">,
  prompt: string,
  settings: ChatSettings,
  signal: AbortSignal,
): Promise<File> {
  return kind === "speech" ? speak(prompt, settings, signal) : draw(prompt, settings, signal);
}

async function speak(input: string, settings: ChatSettings, signal: AbortSignal): Promise<File> {
  const { model, voice } = settings;
  const response = await send("POST", "/v1/audio/speech", { model, voice, input }, { signal });
  const sound = withSizes(await response.arrayBuffer());
  return new File([sound], "speech.wav", { type: "audio/wav" });
}

async function draw(prompt: string, settings: ChatSettings, signal: AbortSignal): Promise<File> {
  const { model, seed } = settings;
  const body = { model, seed, prompt, response_format: "b64_json", ...sizeOf(settings.image_size) };
  const path = "/v1/images/generations";
  const made = await sendJson<{ data: { b64_json: string }[] }>("POST", path, body, { signal });
  const letters = atob(made.data[0]?.b64_json ?? "");
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  return new File([bytes], "picture.png", { type: "image/png" });
}

/** Return the size that a text such as "512x768" names; nothing for another text. */
export function sizeOf(text: string | undefined): { width?: number; height?: number } {
  const found = /^(\d{1,4})x(\d{1,4})$/.exec(text ?? "");
  return found ? { width: Number(found[1]), height: Number(found[2]) } : {};
}
