"""Embeddings: which of two sentences is closer to a third."""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:1234"
client = OpenAI(base_url=f"{url}/v1", api_key="any")
sentences = ["A cat sleeps.", "A kitten naps.", "The stock market fell."]
answer = client.embeddings.create(model="default", input=sentences)
query, *others = [item.embedding for item in answer.data]
for sentence, vector in zip(sentences[1:], others, strict=True):
    similarity = sum(a * b for a, b in zip(query, vector, strict=True))
    print(f"{similarity:.3f} {sentence}")
