/** Requests to the server, with typed errors. */

/** An error that the server answered. `status` is its HTTP status, `code` its machine-readable name. */
export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    message: string,
    readonly status: number,
    readonly code: string,
    readonly field: string | null = null,
  ) {
    super(message);
  }
}

/** The server could not be reached. */
export class NetworkError extends Error {
  override readonly name = "NetworkError";

  constructor(cause?: unknown) {
    super("The server cannot be reached.", { cause });
  }
}

/** A number or a text of an address's query. Undefined values are left out. */
export type Query = Record<string, string | number | boolean | undefined>;

export interface CallOptions {
  query?: Query;
  signal?: AbortSignal | undefined;
}

type Method = "GET" | "POST" | "PATCH" | "PUT" | "DELETE";

/** Return the JSON that `path` answers. Throws ApiError, NetworkError, or the signal's AbortError. */
export async function getJson<T>(path: string, options: CallOptions = {}): Promise<T> {
  return (await (await send("GET", path, undefined, options)).json()) as T;
}

/** Send `body` as JSON and return the JSON of the answer; undefined if the answer has no body. */
export async function sendJson<T>(
  method: Exclude<Method, "GET">,
  path: string,
  body?: unknown,
  options: CallOptions = {},
): Promise<T> {
  const response = await send(method, path, body, options);
  const text = await response.text();
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

/** Return the text that `path` answers. */
export async function getText(path: string, options: CallOptions = {}): Promise<string> {
  return (await send("GET", path, undefined, options)).text();
}

/** Return the response to a request with a JSON body. Throws ApiError unless its status is 2xx. */
export async function send(
  method: Method,
  path: string,
  body: unknown,
  { query, signal }: CallOptions = {},
): Promise<Response> {
  const init: RequestInit = { method };
  if (signal) init.signal = signal;
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "content-type": "application/json" };
  }
  return request(withQuery(path, query), init);
}

/** Return the response of `fetch`. Throws ApiError unless its status is 2xx, or NetworkError. */
export async function request(url: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new NetworkError(error);
  }
  if (!response.ok) throw await readError(response);
  return response;
}

export interface Upload<T> {
  result: Promise<T>;
  cancel: () => void;
}

/**
 * Send a form and report how much of it was sent. `fetch` reports no progress of uploads, so this
 * is an XMLHttpRequest. `progress` gets a fraction from 0 to 1.
 */
export function sendForm<T>(
  path: string,
  form: FormData,
  progress?: (fraction: number) => void,
): Upload<T> {
  const call = new XMLHttpRequest();
  const result = new Promise<T>((resolve, reject) => {
    call.upload.onprogress = (event) => {
      if (event.lengthComputable) progress?.(event.loaded / event.total);
    };
    call.onerror = () => reject(new NetworkError());
    call.onabort = () => reject(new DOMException("The upload was cancelled.", "AbortError"));
    call.onload = () => {
      if (call.status >= 200 && call.status < 300) resolve(JSON.parse(call.responseText) as T);
      else reject(errorFrom(call.status, call.responseText));
    };
  });
  call.open("POST", path);
  call.send(form);
  return { result, cancel: () => call.abort() };
}

/** Return the sentence about `error` that a person reads. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Whether `error` says that the page itself cancelled the request. */
export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

function withQuery(path: string, query: Query | undefined): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined) given.set(name, String(value));
  }
  const text = given.toString();
  return text === "" ? path : `${path}?${text}`;
}

async function readError(response: Response): Promise<ApiError> {
  return errorFrom(response.status, await response.text().catch(() => ""));
}

function errorFrom(status: number, text: string): ApiError {
  try {
    const body = JSON.parse(text) as {
      error?: { message?: string; code?: string; param?: string };
    };
    if (body.error?.message) {
      const { message, code, param } = body.error;
      return new ApiError(sentence(message), status, code ?? "unknown", param ?? null);
    }
  } catch {
    // Not JSON: a proxy answered, or the server was interrupted.
  }
  return new ApiError(`The server answered with status ${status}.`, status, "unknown");
}

/** The server's messages begin in lower case and have no full stop. */
function sentence(message: string): string {
  const text = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
