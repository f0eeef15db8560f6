"""Decode at the end of a context with llama.cpp from the PyPI package `xllamacpp`, with a float16
and a q8_0 cache.

python xllamacpp_kv_cache.py MODEL.gguf CONTEXT TOKENS THREADS

Prints READY when both have computed the prompt. Then, for each line of standard input, each of them
generates TOKENS tokens, which end the context, and a line with the milliseconds of a token by type
of the cache is printed as JSON.
"""

import json
import random
import sys

import xllamacpp
from xllamacpp_completion import completion

TYPES = {
    "f16": xllamacpp.ggml_type.GGML_TYPE_F16,
    "q8_0": xllamacpp.ggml_type.GGML_TYPE_Q8_0,
}
LEAST_ID, MOST_ID = 1000, 9000  # tokens that every measured vocabulary has as texts

path, context, tokens, threads = sys.argv[1], *map(int, sys.argv[2:5])
generator = random.Random(0)
prompt = [generator.randrange(LEAST_ID, MOST_ID) for _ in range(context - tokens)]


def serve(kind: str) -> xllamacpp.Server:
    """Return a server whose cache has the type `kind`."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.warmup = context + 64, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_type_k = params.cache_type_v = TYPES[kind]
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.cache_ram_mib = 0
    params.port = 0
    return xllamacpp.Server(params)


def token_ms(server: xllamacpp.Server) -> float:
    """Generate TOKENS tokens after the prompt, which the server computes only once."""
    body = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": True,
    }
    timings = completion(server.listening_address, body)["timings"]
    assert timings["predicted_n"] == tokens, timings
    return float(timings["predicted_per_token_ms"])


servers = {kind: serve(kind) for kind in TYPES}
for server in servers.values():
    token_ms(server)
print("READY", flush=True)
for _ in sys.stdin:
    times = {kind: token_ms(server) for kind, server in servers.items()}
    print("RESULT " + json.dumps(times), flush=True)
