/** The kinds of models, and the words for the content that they read and make. */

import type { ModelInfo } from "../../api/types";
import { formatNumber } from "../../ui/format";

const KINDS: Record<string, string> = {
  text: "Chat",
  transcription: "Transcription",
  embeddings: "Embeddings",
  rerank: "Reranking",
  speech: "Speech",
  image: "Images",
};

const SAMPLING: Record<string, string> = {
  temperature: "temperature",
  top_p: "top-p",
  top_k: "top-k",
  min_p: "min-p",
  repetition_penalty: "repetition penalty",
};

/** Return the kind of a model, such as "Embeddings"; null while the model is not connected. */
export function kindOf(model: ModelInfo): string | null {
  const [made] = model.modalities_out;
  return made === undefined ? null : (KINDS[made] ?? made);
}

/** Return the sampling defaults as one line, or "" if the model has none. */
export function describeSampling(sampling: ModelInfo["sampling"]): string {
  return Object.entries(sampling)
    .filter(([, value]) => typeof value === "number")
    .map(([name, value]) => `${SAMPLING[name] ?? name} ${formatNumber(Number(value), 3)}`)
    .join(" · ");
}
