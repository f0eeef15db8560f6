/** LoRA adapters. */

import { getJson, sendJson } from "./client";

/** An alias, and the adapter generation that it names. `source`: the folder of its files. */
export interface Adapter {
  id: string;
  generation: string;
  rank: number;
  bytes: number;
  source?: string;
}

export interface AdapterGeneration {
  generation: string;
  aliases: string[];
  rank: number;
  bytes: number;
  retired: boolean;
  active_leases: number;
  resident: boolean;
}

export interface AdapterList {
  data: Adapter[];
  generations: AdapterGeneration[];
  resident_generations: number;
  retired_generations: number;
  resident_bytes: number;
  max_adapters: number;
  max_rank: number;
  max_bytes: number;
}

export function listAdapters(model?: string, signal?: AbortSignal): Promise<AdapterList> {
  return getJson("/v1/lora_adapters", { query: { model }, signal });
}

/** Load the adapter in folder `path` of the server as `name`. */
export function loadAdapter(
  name: string,
  path: string,
  options: { model?: string; replace?: boolean } = {},
): Promise<unknown> {
  const { model, replace } = options;
  const body = { lora_name: name, lora_path: path, model, load_inplace: replace };
  return sendJson("POST", "/v1/load_lora_adapter", body);
}

export function unloadAdapter(name: string, model?: string): Promise<unknown> {
  return sendJson("POST", "/v1/unload_lora_adapter", { lora_name: name, model });
}
