"""Server tool: the server runs the model's Python code in its sandbox and returns the files."""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:1234"
client = OpenAI(base_url=f"{url}/v1", api_key="any")
answer = client.responses.create(
    model="default",
    input="Use Python to compute 2**100 and to write the result to the file number.txt.",
    tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
    tool_choice="required",
    include=["code_interpreter_call.outputs"],
    max_output_tokens=300,
)
for item in answer.output:
    if item.type == "code_interpreter_call":
        print("code:", item.code)
        for output in item.outputs or []:
            if output.type == "logs":
                print("output:", output.logs)
    elif item.type == "message":
        for part in item.content:
            print("answer:", part.text)
            for citation in part.annotations:
                content = client.files.content(citation.file_id)
                print("file:", citation.filename, len(content.content), "bytes")
print("status:", answer.status)
