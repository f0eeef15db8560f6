"""Anthropic Messages with the official Anthropic client."""

import sys

from anthropic import Anthropic

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:1234"
client = Anthropic(base_url=url, api_key="any")
question = [{"role": "user", "content": "Name three rivers."}]
count = client.messages.count_tokens(model="default", messages=question)
answer = client.messages.create(model="default", messages=question, max_tokens=64)
print(f"{count.input_tokens} prompt tokens")
print(answer.content[0].text)
