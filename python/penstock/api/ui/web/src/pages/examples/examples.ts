/** Chooses the examples that a server can answer. */

import type { ChatSettings, ModelInfo } from "../../api/types";
import { audio, chat, type Example, image, jsonSchema, streaming, tools } from "./chat";
import { embeddings, imageEmbeddings, picture, rerank, speech } from "./others";

/**
 * Return the examples for the models of a server.
 *
 * `base`: its address, without a slash at its end. `settings`: those of a chat. `models`: all
 * models; what a model that is not loaded can do is unknown, so it has no examples.
 */
export function examplesOf(
  base: string,
  settings: ChatSettings,
  models: readonly ModelInfo[],
  fallback: string | undefined,
): Example[] {
  return [...textExamples(base, settings, models, fallback), ...otherExamples(base, models)];
}

function textExamples(
  base: string,
  settings: ChatSettings,
  models: readonly ModelInfo[],
  fallback: string | undefined,
): Example[] {
  const answering = models.filter((model) => makes(model, "text"));
  const wanted = settings.model ?? fallback;
  const chosen = answering.find(({ id }) => id === wanted) ?? answering[0];
  if (!chosen) return [];
  const context = { base, model: chosen.id, settings };
  const found = [chat(context), streaming(context)];
  if (chosen.tools) found.push(tools(context));
  found.push(jsonSchema(context));
  for (const [kind, example] of [
    ["image", image],
    ["audio", (of: typeof context) => audio(of, false)],
  ] as const) {
    const able = [chosen, ...answering].find((model) => model.modalities_in.includes(kind));
    if (able) found.push(example({ ...context, model: able.id }));
  }
  return found;
}

function otherExamples(base: string, models: readonly ModelInfo[]): Example[] {
  const found: Example[] = [];
  const first = (made: string, accepts: (model: ModelInfo) => boolean = () => true) =>
    models.find((model) => makes(model, made) && accepts(model));
  const transcriber = first("transcription");
  if (transcriber) found.push(audio({ base, model: transcriber.id, settings: {} }, true));
  const embedder = first("embeddings", reads("text"));
  if (embedder) found.push(embeddings(base, embedder));
  const seer = first("embeddings", reads("image"));
  if (seer) found.push(imageEmbeddings(base, seer));
  const ranker = first("rerank");
  if (ranker) found.push(rerank(base, ranker));
  const speaker = first("speech");
  if (speaker) found.push(speech(base, speaker));
  const painter = first("image");
  if (painter) found.push(picture(base, painter));
  return found;
}

function makes(model: ModelInfo, made: string): boolean {
  return model.modalities_out.includes(made);
}

function reads(kind: string): (model: ModelInfo) => boolean {
  return (model) => model.modalities_in.includes(kind);
}
