"""Answer constrained to a JSON schema."""

import json
import sys

from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "length_km": {"type": "integer", "minimum": 1, "maximum": 9999},
        "continent": {"enum": ["Africa", "America", "Asia", "Australia", "Europe"]},
    },
    "required": ["name", "length_km", "continent"],
    "additionalProperties": False,
}

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:1234"
client = OpenAI(base_url=f"{url}/v1", api_key="any")
answer = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "Describe a river as JSON."}],
    response_format={"type": "json_schema", "json_schema": {"name": "river", "schema": SCHEMA}},
    max_tokens=100,
)
print(json.loads(answer.choices[0].message.content))
