"""LoRA adapter, loaded into a running server and named as the model of a request.

Start the server with runtime loading enabled, and put a PEFT folder `sql` into ./adapters:

    export SERVICE_ALLOW_RUNTIME_LORA_UPDATING=1 SERVICE_LORA_ADAPTER_ROOT=$PWD/adapters
    penstock serve qwen2.5-coder-0.5b-instruct --enable-lora

Then run `python lora.py http://localhost:1234 sql`.
"""

import json
import sys
import urllib.request

from openai import OpenAI

url, folder = sys.argv[1:3]


def post(path: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()


post("/v1/load_lora_adapter", {"lora_name": "my-adapter", "lora_path": folder})
client = OpenAI(base_url=f"{url}/v1", api_key="any")
answer = client.chat.completions.create(
    model="my-adapter",
    messages=[{"role": "user", "content": "Names of all singers over 30."}],
    max_tokens=64,
    temperature=0,
)
print(answer.choices[0].message.content)
post("/v1/unload_lora_adapter", {"lora_name": "my-adapter"})
