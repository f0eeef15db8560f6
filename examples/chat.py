"""Chat completion with the official OpenAI client."""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:1234"
client = OpenAI(base_url=f"{url}/v1", api_key="any")
answer = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "Name three colours."}],
    temperature=0,
    max_tokens=64,
)
print(answer.choices[0].message.content)
