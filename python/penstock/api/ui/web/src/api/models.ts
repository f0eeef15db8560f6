/** Models, downloads, metrics and the request log. */

import { getJson, getText, sendJson } from "./client";
import type { CatalogueEntry, Pull, RequestPage, ServerInfo } from "./types";

export function getInfo(signal?: AbortSignal): Promise<ServerInfo> {
  return getJson("/ui/api/info", { signal });
}

/** The status of a model. `error`: the reason why it could not be loaded. */
export interface ModelStatus {
  model_id: string;
  status: "loaded" | "unloaded" | "reloading";
  error?: string;
}

/** Load a model; the answer arrives when the model is loaded. */
export function loadModel(id: string): Promise<ModelStatus> {
  return sendJson("POST", "/v1/models/reload", { model_id: id });
}

export function unloadModel(id: string): Promise<ModelStatus> {
  return sendJson("POST", "/v1/models/unload", { model_id: id });
}

export function getModelStatus(id: string): Promise<ModelStatus> {
  return sendJson("POST", "/v1/models/status", { model_id: id });
}

/** Return the names of models that can be downloaded. */
export function getCatalogue(): Promise<CatalogueEntry[]> {
  return getJson("/ui/api/models/catalogue");
}

export function startPull(model: string): Promise<Pull> {
  return sendJson("POST", "/ui/api/models/pull", { model });
}

export function listPulls(signal?: AbortSignal): Promise<Pull[]> {
  return getJson("/ui/api/models/pulls", { signal });
}

export function cancelPull(id: string): Promise<void> {
  return sendJson("DELETE", `/ui/api/models/pulls/${encodeURIComponent(id)}`);
}

/**
 * Return the last requests of the process that answers, at most 500. `seen`: only newer ones, if it
 * is still the same process.
 */
export function listRequests(
  seen?: { process: string; after: number },
  signal?: AbortSignal,
): Promise<RequestPage> {
  return getJson("/ui/api/requests", { query: { ...seen }, signal });
}

/** Return the metrics in Prometheus' text format. */
export function getMetrics(signal?: AbortSignal): Promise<string> {
  return getText("/metrics", { signal });
}
