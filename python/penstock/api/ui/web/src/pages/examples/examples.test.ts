import { expect, test } from "vitest";

import type { ModelInfo } from "../../api/types";
import { curl, curlWithFiles } from "./clients";
import { examplesOf } from "./examples";
import { argumentsFor, chatFields, messagesFields } from "./fields";
import { Code, literal } from "./literals";

function model(id: string, made: string, reads: string[] = ["text"]): ModelInfo {
  return {
    id,
    status: "loaded",
    error: null,
    modalities_in: reads,
    modalities_out: made === "" ? [] : [made],
    context: 100,
    memory_bytes: null,
    sampling: {},
    voices: made === "speech" ? ["one"] : [],
    adapters: [],
    lora: false,
    reasoning: false,
    tools: made === "text",
  };
}

test("literals are written in the words of their language", () => {
  const value = { a: true, "b-c": null, d: [1.5, 'x"y'] };
  expect(literal(value, "json")).toBe('{"a": true, "b-c": null, "d": [1.5, "x\\"y"]}');
  expect(literal(value, "python")).toBe('{"a": True, "b-c": None, "d": [1.5, "x\\"y"]}');
  expect(literal(value, "javascript")).toBe('{ a: true, "b-c": null, d: [1.5, "x\\"y"] }');
  expect(literal({ x: new Code("name") }, "python")).toBe('{"x": name}');
});

test("long literals are broken into lines and stay valid", () => {
  const value = { texts: Array.from({ length: 12 }, (_, index) => `text ${index}`), last: 1 };
  expect(literal(value, "json")).toContain("\n");
  expect(JSON.parse(literal(value, "json"))).toEqual(value);
});

test("a body survives the quotes of the shell", () => {
  expect(curl("URL", { text: "don't" })).toContain(`'{"text": "don'\\''t"}'`);
  const text = curlWithFiles("URL", { text: "$HOME `id` \\n", data: new Code("$(base64 < f)") });
  expect(text).toContain('{"text": "\\$HOME \\`id\\` \\\\\\\\n", "data": "$(base64 < f)"}');
});

test("settings become fields of both APIs", () => {
  const settings = {
    system: "Be brief.",
    temperature: 0.5,
    min_p: 0.1,
    stop: ["END"],
    enable_thinking: false,
    logprobs: true,
    tools: { search: true, code: true },
  };
  expect(chatFields(settings)).toEqual({
    temperature: 0.5,
    min_p: 0.1,
    stop: ["END"],
    enable_thinking: false,
    logprobs: true,
    web_search_options: {},
    tools: [{ type: "code_interpreter", container: { type: "auto" } }],
  });
  expect(messagesFields(settings)).toEqual({
    max_tokens: 1024,
    system: "Be brief.",
    temperature: 0.5,
    min_p: 0.1,
    stop_sequences: ["END"],
    thinking: { type: "disabled" },
    web_search_options: {},
    enable_code_execution: true,
  });
});

test("fields that a client does not know go into extra_body", () => {
  expect(argumentsFor("openai", { temperature: 0, top_k: 3 })).toEqual({
    temperature: 0,
    extra_body: { top_k: 3 },
  });
  expect(argumentsFor("openai", { temperature: 0 })).toEqual({ temperature: 0 });
});

test("each kind of model has its examples", () => {
  const all = [
    model("chat", "text"),
    model("sees", "text", ["text", "image", "audio"]),
    model("embeds", "embeddings"),
    model("clip", "embeddings", ["text", "image"]),
    model("ranks", "rerank"),
    model("speaks", "speech"),
    model("draws", "image"),
    model("hears", "transcription", ["audio"]),
    model("sleeps", ""),
  ];
  const found = examplesOf("http://host", {}, all, "chat");
  expect(found.map(({ id, model: of }) => `${id}: ${of}`)).toEqual([
    "chat: chat",
    "streaming: chat",
    "tools: chat",
    "json: chat",
    "image: sees",
    "audio: sees",
    "transcription: hears",
    "embeddings: embeds",
    "image-embeddings: clip",
    "rerank: ranks",
    "speech: speaks",
    "picture: draws",
  ]);
});

test("the model of the chat answers if it is loaded", () => {
  const all = [model("a", "text"), model("b", "text")];
  expect(examplesOf("", { model: "b" }, all, "a")[0]?.model).toBe("b");
  expect(examplesOf("", { model: "gone" }, all, "a")[0]?.model).toBe("a");
  expect(examplesOf("", {}, [model("e", "embeddings")], "e")[0]?.id).toBe("embeddings");
});
