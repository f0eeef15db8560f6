/** Examples for models that make something other than text. */

import type { ModelInfo } from "../../api/types";
import type { Example } from "./chat";
import { curl, openai, post } from "./clients";
import { Code, literal, pythonArguments } from "./literals";

const TEXTS = ["A cat sleeps.", "A kitten naps."];

export function embeddings(base: string, model: ModelInfo): Example {
  const url = `${base}/v1/embeddings`;
  const body = { model: model.id, input: TEXTS };
  return {
    id: "embeddings",
    title: "Embeddings",
    text: "Texts as vectors; the product of two tells how close their meanings are.",
    model: model.id,
    codes: {
      curl: curl(url, body),
      openai: openai(
        base,
        `answer = client.embeddings.create(\n${pythonArguments(body)})
one, other = (entry.embedding for entry in answer.data)
print(sum(a * b for a, b in zip(one, other)))
`,
      ),
      javascript:
        post(url, body) +
        `const answer = await response.json();
const [one, other] = answer.data.map((entry) => entry.embedding);
console.log(one.reduce((sum, value, index) => sum + value * other[index], 0));
`,
    },
  };
}

export function rerank(base: string, model: ModelInfo): Example {
  const url = `${base}/v1/rerank`;
  const body = {
    model: model.id,
    query: "How long is the Rhine?",
    documents: ["The Alps are mountains.", "The Rhine is 1,230 km long."],
  };
  return {
    id: "rerank",
    title: "Reranking",
    text: "Documents in the order in which they answer a question.",
    model: model.id,
    codes: {
      curl: curl(url, body),
      openai: openai(
        base,
        `answer = client.post("/rerank", body=${literal(body, "python", 0, 36)}, cast_to=object)
for result in answer["results"]:
    print(result["index"], result["relevance_score"])
`,
      ),
      javascript:
        post(url, body) +
        `const answer = await response.json();
for (const { index, relevance_score } of answer.results) console.log(index, relevance_score);
`,
    },
  };
}

export function speech(base: string, model: ModelInfo): Example {
  const url = `${base}/v1/audio/speech`;
  const [voice] = model.voices;
  const body = { model: model.id, input: "The Rhine flows north.", response_format: "wav" };
  const all = voice === undefined ? body : { ...body, voice };
  return {
    id: "speech",
    title: "Speech",
    text: "A text as speech, in the file speech.wav.",
    model: model.id,
    codes: {
      curl: curl(url, all, " --output speech.wav"),
      openai: openai(
        base,
        `with client.audio.speech.with_streaming_response.create(
${pythonArguments({ ...body, voice: voice ?? "default" })}) as response:
    response.stream_to_file("speech.wav")
`,
      ),
      javascript:
        `import { writeFile } from "node:fs/promises";\n\n` +
        post(url, all) +
        `await writeFile("speech.wav", Buffer.from(await response.arrayBuffer()));\n`,
    },
  };
}

export function picture(base: string, model: ModelInfo): Example {
  const url = `${base}/v1/images/generations`;
  const body = { model: model.id, prompt: "the Rhine in winter", response_format: "b64_json" };
  const size = { height: 256, width: 256 };
  return {
    id: "picture",
    title: "Picture",
    text: "A picture from a description, in the file picture.png.",
    model: model.id,
    codes: {
      curl: `${curl(url, { ...body, ...size }).trimEnd()} \\
  | sed 's/.*"b64_json" *: *"\\([^"]*\\)".*/\\1/' | base64 -d > picture.png\n`,
      openai: openai(
        base,
        `answer = client.images.generate(
${pythonArguments({ ...body, extra_body: size })})
with open("picture.png", "wb") as file:
    file.write(base64.b64decode(answer.data[0].b64_json))
`,
        "import base64\n\n",
      ),
      javascript:
        `import { writeFile } from "node:fs/promises";\n\n` +
        post(url, { ...body, ...size }) +
        `const answer = await response.json();
await writeFile("picture.png", Buffer.from(answer.data[0].b64_json, "base64"));
`,
    },
  };
}

/** For models that embed pictures only. */
export function imageEmbeddings(base: string, model: ModelInfo): Example {
  const url = `${base}/v1/embeddings`;
  return {
    id: "image-embeddings",
    title: "Embeddings of images",
    text: "The picture photo.jpg as a vector.",
    model: model.id,
    codes: {
      openai: openai(
        base,
        `photo = base64.b64encode(open("photo.jpg", "rb").read()).decode()
answer = client.embeddings.create(
${pythonArguments({ model: model.id, input: [{ image: new Code("photo") }] })})
print(len(answer.data[0].embedding))
`,
        "import base64\n\n",
      ),
      javascript:
        `import { readFile } from "node:fs/promises";

const photo = await readFile("photo.jpg", "base64");
` +
        post(url, { model: model.id, input: [{ image: new Code("photo") }] }) +
        `const answer = await response.json();
console.log(answer.data[0].embedding.length);
`,
    },
  };
}
