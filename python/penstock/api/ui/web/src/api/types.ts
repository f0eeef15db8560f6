/** The shapes of `/ui/api`: JSON as the server sends it. Times are Unix seconds, sizes are bytes. */

export type Role = "user" | "assistant";
export type MessageStatus = "done" | "running" | "stopped" | "failed";

export interface Attachment {
  id: string;
  name: string;
  mime_type: string;
  bytes: number;
  url: string;
}

/** A token of an answer, and the alternatives that the model weighed at its place. */
export interface TokenChoice {
  text: string;
  logprob: number | null;
  top: { text: string; logprob: number }[];
}

export interface TextBlock {
  type: "text";
  text: string;
  tokens?: TokenChoice[] | null;
}

export interface ReasoningBlock {
  type: "reasoning";
  text: string;
  seconds?: number | null;
}

export interface AttachmentBlock {
  type: "attachment";
  attachment: Attachment;
}

export interface ToolBlock {
  type: "tool";
  call_id: string;
  /** "code_execution", "web_search", "shell", "custom" or the name of a newer kind. */
  tool: string;
  /** The function that the model called. */
  name: string;
  label: string;
  /** JSON text. */
  arguments: string;
  state: "running" | "done" | "failed";
  /** The `data` of an `agentic_tool_call_progress` event, without images. */
  result: Record<string, unknown>;
  /** The result as the model sees it. */
  output: string;
  images: Attachment[];
}

export type Decision = "approve" | "deny" | "expired";

export interface ApprovalBlock {
  type: "approval";
  approval_id: string;
  /** The tool block that waits for the decision. */
  call_id: string;
  tool: { source: string; kind: string; label: string };
  /** JSON text: what runs if the call is approved. */
  arguments: string;
  decision: Decision | null;
}

/** A file that a tool made. Without `attachment`, `problem` says why there is no content. */
export interface FileBlock {
  type: "file";
  name: string;
  attachment: Attachment | null;
  problem: string | null;
}

export type Block =
  TextBlock | ReasoningBlock | AttachmentBlock | ToolBlock | ApprovalBlock | FileBlock;

export interface MessageInfo {
  model?: string;
  adapter?: string;
  finish_reason?: string;
  error?: { message: string; code: string };
  prompt_tokens?: number;
  cached_tokens?: number;
  completion_tokens?: number;
  ttft_s?: number;
  tokens_per_s?: number;
  prompt_tokens_per_s?: number;
  seconds?: number;
}

export interface Message {
  id: string;
  chat_id: string;
  parent: string | null;
  role: Role;
  created_at: number;
  status: MessageStatus;
  blocks: Block[];
  info: MessageInfo;
}

/** The settings of a chat. A field that is absent has the model's own default. */
export interface ChatSettings {
  model?: string;
  system?: string;
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  max_tokens?: number;
  repetition_penalty?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  seed?: number;
  stop?: string[];
  enable_thinking?: boolean;
  reasoning_effort?: string;
  grammar?: unknown;
  response_format?: unknown;
  logprobs?: boolean;
  top_logprobs?: number;
  adapter?: string;
  tools?: { search?: boolean; code?: boolean; shell?: boolean };
  agent_permission?: string;
  max_tool_rounds?: number;
  /** The voice of a model that speaks. */
  voice?: string;
  /** The size of pictures, such as "512x768": width x height in pixels. */
  image_size?: string;
}

export interface Chat {
  id: string;
  title: string;
  created_at: number;
  updated_at: number;
  tail: string | null;
  settings: ChatSettings;
}

/** An entry of the chat list. `snippet`: the text around a search hit, else the first words. */
export interface ChatSummary {
  id: string;
  title: string;
  updated_at: number;
  snippet: string;
}

export interface ChatPage {
  chats: ChatSummary[];
  more: boolean;
}

export interface ChatWithMessages {
  chat: Chat;
  messages: Message[];
}

/** A block of a message that the page sends: a text, or an attachment that was uploaded before. */
export type NewBlock = { type: "text"; text: string } | { type: "attachment"; id: string };

export interface ModelInfo {
  id: string;
  status: "loaded" | "unloaded" | "reloading";
  /** The reason why the last load failed. */
  error: string | null;
  modalities_in: string[];
  modalities_out: string[];
  context: number | null;
  /** The memory of its engine on the CPU; null while it is not loaded. */
  memory_bytes: number | null;
  sampling: Partial<
    Pick<ChatSettings, "temperature" | "top_p" | "top_k" | "min_p" | "repetition_penalty">
  >;
  /** The voices of a model that speaks. */
  voices: string[];
  adapters: string[];
  /** Whether adapters can be loaded into it. */
  lora: boolean;
  reasoning: boolean;
  tools: boolean;
}

export interface ServerInfo {
  version: string;
  default_model: string;
  models: ModelInfo[];
  tools: { search: boolean; code: boolean; shell: boolean; mcp: string[] };
  /** Null if the server has no tools. */
  agent_permission: "auto" | "ask" | "deny" | null;
  /** `pull_any`: any model of the hub may be downloaded, not only those of the catalogue. */
  features: { pull_any: boolean; adapters_mutable: boolean; metrics: boolean };
}

export interface PullFile {
  name: string;
  done: number;
  total: number | null;
}

export interface Pull {
  id: string;
  model: string;
  state: "running" | "done" | "failed" | "cancelled";
  files: PullFile[];
  error: string | null;
}

export interface CatalogueEntry {
  name: string;
  description: string;
  bytes: number | null;
  licence: string | null;
  fetched: boolean;
}

/** A request that the server has answered. `number` counts from 1. */
export interface RequestEntry {
  number: number;
  id: string;
  time: number;
  method: string;
  path: string;
  model: string;
  status: number;
  outcome: string;
  seconds: number;
  ttft_s: number | null;
  prompt_tokens: number;
  completion_tokens: number;
}

/** A part of the request log, oldest first. `process` names the process that numbered it. */
export interface RequestPage {
  process: string;
  requests: RequestEntry[];
}

/** The events of a message, in the order in which the server sends them. */
export type MessageEvent =
  | { event: "message"; data: Message }
  | { event: "block"; data: { index: number; block: Block } }
  | { event: "append"; data: { index: number; text: string; tokens?: TokenChoice[] } }
  | { event: "info"; data: { status: MessageStatus; info: MessageInfo } };
