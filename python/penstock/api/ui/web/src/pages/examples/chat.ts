/** Examples for models that answer with text. */

import type { ChatSettings } from "../../api/types";
import {
  anthropic,
  anthropicArguments,
  base64Of,
  type Client,
  curl,
  curlWithFiles,
  openai,
  openaiArguments,
  post,
} from "./clients";
import { chatFields, type Fields, messagesFields, withoutForm } from "./fields";
import { Code, literal, type Value, type Written } from "./literals";

export interface Example {
  id: string;
  title: string;
  text: string;
  /** The id of the model. */
  model: string;
  /** A client -> its program. A client that is absent has no such request. */
  codes: Partial<Record<Client, string>>;
}

export interface Context {
  /** The address of the server, without a slash at its end. */
  base: string;
  model: string;
  settings: ChatSettings;
}

const QUESTION = "Name three rivers of Europe.";
const ANSWERED = `print(answer.choices[0].message.content)\n`;
const ANSWERED_MESSAGES = `print("".join(block.text for block in answer.content if block.type == "text"))\n`;
const ANSWERED_JS = `const answer = await response.json();
console.log(answer.choices[0].message.content);
`;

const WEATHER: Value = {
  type: "object",
  properties: { city: { type: "string", enum: ["Basel", "Bern", "Zurich"] } },
  required: ["city"],
};
const RIVER: Value = {
  type: "object",
  properties: { name: { type: "string" }, length_km: { type: "integer" } },
  required: ["name", "length_km"],
  additionalProperties: false,
};

/** The address of chat completions. */
function completions(base: string): string {
  return `${base}/v1/chat/completions`;
}

/** Return the beginning of a request: its model and its messages. */
function head({ model, settings }: Context, content: Written, system = true) {
  const first = system && settings.system ? [{ role: "system", content: settings.system }] : [];
  return { model, messages: [...first, { role: "user", content }] };
}

export function chat(context: Context): Example {
  const { base, settings } = context;
  const fields = chatFields(settings);
  const own = head(context, QUESTION);
  return {
    id: "chat",
    title: "Chat",
    text: "One answer, when it is complete.",
    model: context.model,
    codes: {
      curl: curl(completions(base), { ...own, ...fields }),
      openai: openai(
        base,
        `answer = client.chat.completions.create(\n${openaiArguments(own, fields)})\n${ANSWERED}`,
      ),
      anthropic: anthropic(
        base,
        `answer = client.messages.create(\n${messagesArguments(context, QUESTION)})\n${ANSWERED_MESSAGES}`,
      ),
      javascript: post(completions(base), { ...own, ...fields }) + ANSWERED_JS,
    },
  };
}

export function streaming(context: Context): Example {
  const { base, settings } = context;
  const fields = chatFields(settings);
  const own = head(context, QUESTION);
  return {
    id: "streaming",
    title: "Streaming",
    text: "The answer arrives piece by piece.",
    model: context.model,
    codes: {
      curl: curl(completions(base), { ...own, stream: true, ...fields }, " --no-buffer"),
      openai: openai(
        base,
        `stream = client.chat.completions.create(\n${openaiArguments({ ...own, stream: true }, fields)})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
`,
      ),
      anthropic: anthropic(
        base,
        `with client.messages.stream(\n${messagesArguments(context, QUESTION)}) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
print()
`,
      ),
      javascript:
        post(completions(base), { ...own, stream: true, ...fields }) +
        `let rest = "";
let text = "";
for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + piece).split("\\n");
  rest = lines.pop();
  for (const line of lines) {
    if (!line.startsWith("data: {")) continue;
    text += JSON.parse(line.slice(6)).choices[0]?.delta.content ?? "";
  }
}
console.log(text);
`,
    },
  };
}

export function tools(context: Context): Example {
  const { base, settings } = context;
  const fields = withoutForm(chatFields(settings));
  const own = head(context, "What is the weather in Basel?");
  const tool = { name: "get_weather", description: "Return the weather of a city." };
  const offered = [{ type: "function", function: { ...tool, parameters: WEATHER } }];
  const request = { ...own, tools: offered, tool_choice: "required" };
  const messages = withoutForm(messagesFields(settings));
  const question = "What is the weather in Basel?";
  return {
    id: "tools",
    title: "Tools",
    text: "The model calls a function of your program, and answers with its result.",
    model: context.model,
    codes: {
      curl: curl(completions(base), { ...request, ...fields }),
      openai: openai(
        base,
        `tools = ${listOf(offered[0] as Written)}
${pythonMessages(own.messages)}
answer = client.chat.completions.create(
${openaiArguments({ model: context.model, messages: new Code("messages"), tools: new Code("tools"), tool_choice: "required" }, fields)})
message = answer.choices[0].message
messages.append(message)
for call in message.tool_calls:
    print(call.function.name, call.function.arguments)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "12 °C, rain"})

answer = client.chat.completions.create(
${openaiArguments({ model: context.model, messages: new Code("messages") }, fields)})
${ANSWERED}`,
      ),
      anthropic: anthropic(
        base,
        `tools = ${listOf({ ...tool, input_schema: WEATHER })}
${pythonMessages([{ role: "user", content: question }])}
answer = client.messages.create(
${anthropicArguments({ model: context.model, messages: new Code("messages"), tools: new Code("tools"), tool_choice: { type: "any" } }, messages)})
messages.append({"role": "assistant", "content": answer.content})
results = []
for block in answer.content:
    if block.type == "tool_use":
        print(block.name, block.input)
        results.append(
            {"type": "tool_result", "tool_use_id": block.id, "content": "12 °C, rain"}
        )
messages.append({"role": "user", "content": results})

answer = client.messages.create(
${anthropicArguments({ model: context.model, messages: new Code("messages"), tools: new Code("tools") }, messages)})
${ANSWERED_MESSAGES}`,
      ),
      javascript:
        post(completions(base), { ...request, ...fields }) +
        `const answer = await response.json();
for (const call of answer.choices[0].message.tool_calls) {
  console.log(call.function.name, call.function.arguments);
}
`,
    },
  };
}

export function jsonSchema(context: Context): Example {
  const { base, settings } = context;
  const fields = withoutForm(chatFields(settings));
  const format = {
    response_format: {
      type: "json_schema",
      json_schema: { name: "river", schema: RIVER, strict: true },
    },
  };
  const question = "Describe the Rhine.";
  const own = head(context, question);
  return {
    id: "json",
    title: "JSON schema",
    text: "The answer is JSON that fits a schema; a grammar enforces it.",
    model: context.model,
    codes: {
      curl: curl(completions(base), { ...own, ...format, ...fields }),
      openai: openai(
        base,
        `answer = client.chat.completions.create(\n${openaiArguments(own, { ...format, ...fields })})
print(json.loads(answer.choices[0].message.content))
`,
        "import json\n\n",
      ),
      anthropic: anthropic(
        base,
        `answer = client.messages.create(\n${messagesArguments(context, question, {
          ...withoutForm(messagesFields(settings)),
          output_config: { format: { type: "json_schema", schema: RIVER } },
        })})
text = "".join(block.text for block in answer.content if block.type == "text")
print(json.loads(text))
`,
        "import json\n\n",
      ),
      javascript:
        post(completions(base), { ...own, ...format, ...fields }) +
        `const answer = await response.json();
console.log(JSON.parse(answer.choices[0].message.content));
`,
    },
  };
}

export function image(context: Context): Example {
  const { base, settings } = context;
  const fields = chatFields(settings);
  const own = (url: Written) =>
    head(context, [
      { type: "image_url", image_url: { url } },
      { type: "text", text: "What is on the picture?" },
    ]);
  const source = { type: "base64", media_type: "image/jpeg", data: new Code("picture") };
  return {
    id: "image",
    title: "Image",
    text: "A question about the picture photo.jpg. An https address works in place of its content.",
    model: context.model,
    codes: {
      curl: curlWithFiles(completions(base), {
        ...own(new Code(`data:image/jpeg;base64,${base64Of("photo.jpg")}`)),
        ...fields,
      }),
      openai: openai(
        base,
        `picture = base64.b64encode(open("photo.jpg", "rb").read()).decode()
answer = client.chat.completions.create(
${openaiArguments(own(new Code('f"data:image/jpeg;base64,{picture}"')), fields)})
${ANSWERED}`,
        "import base64\n\n",
      ),
      anthropic: anthropic(
        base,
        `picture = base64.b64encode(open("photo.jpg", "rb").read()).decode()
answer = client.messages.create(
${messagesArguments(context, [
  { type: "image", source },
  { type: "text", text: "What is on the picture?" },
])})
${ANSWERED_MESSAGES}`,
        "import base64\n\n",
      ),
      javascript:
        `import { readFile } from "node:fs/promises";

const picture = await readFile("photo.jpg", "base64");
` +
        post(completions(base), {
          ...own(new Code("`data:image/jpeg;base64,${picture}`")),
          ...fields,
        }) +
        ANSWERED_JS,
    },
  };
}

/** A recording: a question about it, or its transcript. */
export function audio(context: Context, transcribes: boolean): Example {
  const { base, settings } = context;
  const fields = transcribes ? {} : chatFields(settings);
  const text = transcribes ? "language: en" : "What is said in the recording?";
  const own = (data: Written) =>
    head(
      context,
      [
        { type: "input_audio", input_audio: { data, format: "wav" } },
        { type: "text", text },
      ],
      !transcribes,
    );
  return {
    id: transcribes ? "transcription" : "audio",
    title: transcribes ? "Transcription" : "Recording",
    text: transcribes
      ? "The text of the recording speech.wav. Without the second line, the language is detected."
      : "A question about the recording speech.wav.",
    model: context.model,
    codes: {
      curl: curlWithFiles(completions(base), {
        ...own(new Code(base64Of("speech.wav"))),
        ...fields,
      }),
      openai: openai(
        base,
        `recording = base64.b64encode(open("speech.wav", "rb").read()).decode()
answer = client.chat.completions.create(
${openaiArguments(own(new Code("recording")), fields)})
${ANSWERED}`,
        "import base64\n\n",
      ),
      javascript:
        `import { readFile } from "node:fs/promises";

const recording = await readFile("speech.wav", "base64");
` +
        post(completions(base), { ...own(new Code("recording")), ...fields }) +
        ANSWERED_JS,
    },
  };
}

/** Return a Python list with one entry, which is written over several lines. */
function listOf(entry: Written): string {
  return `[${literal(entry, "python", 0, 8)}]`;
}

function pythonMessages(messages: Written): string {
  return `messages = ${literal(messages, "python", 0, 11)}`;
}

function messagesArguments(
  { model, settings }: Context,
  content: Written,
  fields: Fields = messagesFields(settings),
): string {
  return anthropicArguments({ model, messages: [{ role: "user", content }] }, fields);
}
