"""Streamed chat completion, with the token counts of the last chunk."""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:1234"
client = OpenAI(base_url=f"{url}/v1", api_key="any")
stream = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "Tell me a short story about a river."}],
    max_tokens=100,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None:
        print(f"\n{chunk.usage.completion_tokens} tokens")
