"""OpenVINO GenAI's continuous batching as a burst worker. Runs in its own virtual environment.

usage: python openvino_worker.py MODEL_FOLDER [CACHE_GB]
Reads lines {"prompts": [[token id, ...], ...], "new": n}; writes, for each prompt, the seconds from
the burst's start at which its tokens arrived.
"""

import json
import sys
import time

import numpy as np
import openvino
import openvino_genai as genai

model, cache_gb = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
scheduler = genai.SchedulerConfig()
scheduler.cache_size = cache_gb
scheduler.max_num_batched_tokens = 1024
scheduler.enable_prefix_caching = False
pipe = genai.ContinuousBatchingPipeline(
    model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": 2, "CACHE_DIR": model + "/cache"}
)
request_id = 0

for line in sys.stdin:
    burst = json.loads(line)
    config = genai.GenerationConfig()
    config.max_new_tokens = burst["new"]
    config.min_new_tokens = burst["new"]
    config.ignore_eos = True
    config.do_sample = False
    start = time.perf_counter()
    handles = []
    for prompt in burst["prompts"]:
        tensor = openvino.Tensor(np.array([prompt], dtype=np.int64))
        handles.append(pipe.add_request(request_id, tensor, config))
        request_id += 1
    times: list[list[float]] = [[] for _ in handles]
    while pipe.has_non_finished_requests():
        pipe.step()
        now = time.perf_counter() - start
        for handle, own in zip(handles, times, strict=True):
            while handle.can_read():
                for output in handle.read().values():
                    own += [now] * len(output.generated_ids)
    print(json.dumps(times), flush=True)
