"""Continue token ids with llama.cpp from the PyPI package `xllamacpp`, with float32 caches, and
print the log-probabilities of all tokens at each position as JSON.

python xllamacpp_logprobs.py MODEL.gguf PROMPT_IDS_AS_JSON TOKENS VOCABULARY_SIZE
"""

import json
import sys
import urllib.request

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.port = 0
server = xllamacpp.Server(params)
body = {
    "prompt": json.loads(sys.argv[2]),
    "n_predict": int(sys.argv[3]),
    "n_probs": int(sys.argv[4]),
    "temperature": 0,
    "cache_prompt": False,
}
request = urllib.request.Request(
    f"{server.listening_address}/completion",
    json.dumps(body).encode(),
    {"content-type": "application/json"},
)
with urllib.request.urlopen(request) as answer:
    steps = json.load(answer)["completion_probabilities"]
result = [(s["id"], {t["id"]: t["logprob"] for t in s["top_logprobs"]}) for s in steps]
print("RESULT " + json.dumps(result), flush=True)
