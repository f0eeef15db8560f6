"""Tool call: the model calls a function, gets its result and answers."""

import json
import sys

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def get_weather(city: str) -> dict[str, object]:
    return {"city": city, "celsius": 21, "sky": "clear"}


url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:1234"
client = OpenAI(base_url=f"{url}/v1", api_key="any")
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
first = client.chat.completions.create(
    model="default",
    messages=messages,
    tools=[TOOL],
    tool_choice={"type": "function", "function": {"name": "get_weather"}},
    max_tokens=100,
)
call = first.choices[0].message.tool_calls[0]
print("call:", call.function.name, call.function.arguments)

result = get_weather(**json.loads(call.function.arguments))
messages += [
    first.choices[0].message.model_dump(exclude_none=True),
    {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)},
]
last = client.chat.completions.create(model="default", messages=messages, max_tokens=100)
print("answer:", last.choices[0].message.content)
