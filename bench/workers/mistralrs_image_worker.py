"""mistral.rs as a worker that answers chat requests with images. Runs in its own virtual
environment, with as many threads as RAYON_NUM_THREADS says.

usage: python mistralrs_image_worker.py MODEL MMPROJ FOLDER
FOLDER has the config, processor and tokenizer of the GGUF files MODEL and MMPROJ.
It reads the bodies of requests and writes answers, each a line of JSON; the first line says that
the model is loaded.
"""

import json
import os
import sys
from typing import Any

from mistralrs import ChatCompletionRequest, Runner, Which

# The library logs to standard output, which is reserved for the answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def model() -> Which:
    path, mmproj, metadata = sys.argv[1:4]
    folder, name = os.path.split(path)
    return Which.GGUF(folder, name, metadata, mmproj_filename=os.path.basename(mmproj))


def answer(body: dict[str, Any]) -> dict[str, Any]:
    request = ChatCompletionRequest(
        model="default",
        messages=body["messages"],
        max_tokens=body["max_tokens"],
        temperature=body["temperature"],
    )
    response = runner.send_chat_completion_request(request)
    return {"usage": {"prompt_tokens": response.usage.prompt_tokens}}


runner = Runner(which=model())
print("{}", file=answers, flush=True)
for line in sys.stdin:
    try:
        found = answer(json.loads(line))
    except Exception as error:  # the outermost loop of the worker
        found = {"error": str(error)}
    print(json.dumps(found), file=answers, flush=True)
