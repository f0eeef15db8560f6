"""mistral.rs as a burst worker, one request per thread. Runs in its own virtual environment.

usage: python mistralrs_worker.py GGUF_FILE
The wheel has no server and takes only text, so a prompt of n tokens is n common words (peers.md).
"""

import json
import os
import sys
import threading
import time

from mistralrs import ChatCompletionRequest, Runner, Which

# The library logs to standard output, which is reserved for the answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
folder, name = os.path.split(sys.argv[1])
runner = Runner(
    which=Which.GGUF(quantized_model_id=folder, quantized_filename=name),
    max_seqs=32,
    no_kv_cache=False,
)
lock = threading.Lock()


def one(tokens: list[int], new: int, start: float, own: list[float]) -> None:
    request = ChatCompletionRequest(
        model="default",
        messages=[{"role": "user", "content": " the" * max(1, len(tokens) - 30)}],
        max_tokens=new,
        temperature=0.0,
        stream=True,
    )
    with lock:
        stream = runner.send_chat_completion_request(request)
    for _ in stream:
        own.append(time.perf_counter() - start)


for line in sys.stdin:
    burst = json.loads(line)
    start = time.perf_counter()
    times: list[list[float]] = [[] for _ in burst["prompts"]]
    threads = [
        threading.Thread(target=one, args=(prompt, burst["new"], start, own))
        for prompt, own in zip(burst["prompts"], times, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(times), file=answers, flush=True)
