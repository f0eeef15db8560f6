"""Serve a GGUF file with llama.cpp's server from the PyPI package `xllamacpp`, until killed.

python xllamacpp_server.py MODEL.gguf PORT PARALLEL TOKENS_EACH
"""

import sys
import threading

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_parallel, each = int(sys.argv[3]), int(sys.argv[4])
params.n_ctx = params.n_parallel * each
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
params.cache_ram_mib = 0
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
threading.Event().wait()
