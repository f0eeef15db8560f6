"""Continue prompts with llama.cpp from the PyPI package `xllamacpp`, with float32 caches, and print
the log-probabilities of all tokens at each position as JSON.

python xllamacpp_logprobs.py MODEL.gguf PROMPTS_AS_JSON TOKENS VOCABULARY_SIZE
"""

import json
import sys

import xllamacpp
from xllamacpp_completion import completion

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.port = 0
server = xllamacpp.Server(params)


def steps(prompt: list[int]) -> list[tuple[int, dict[int, float]]]:
    """Return the id and the log-probabilities of each token after `prompt`."""
    body = {
        "prompt": prompt,
        "n_predict": int(sys.argv[3]),
        "n_probs": int(sys.argv[4]),
        "temperature": 0,
        "cache_prompt": False,
    }
    found = completion(server.listening_address, body)["completion_probabilities"]
    return [(one["id"], {t["id"]: t["logprob"] for t in one["top_logprobs"]}) for one in found]


print("RESULT " + json.dumps([steps(prompt) for prompt in json.loads(sys.argv[2])]), flush=True)
