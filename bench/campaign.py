"""`python -m bench campaign`: measure every row of the results table beside the peers, part by
part.

Each part starts its own targets, alternates between them, stops them and writes its result, so that
one part can be measured again alone (`--parts`). Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import arrivals, share, starts
from bench.harness import compare
from bench.harness.peers import MAKERS, make_peers
from bench.harness.targets import ours
from bench.harness.workloads import ALL, Workload

PORT = 18500
DEFAULT = "smollm2-135m-instruct"
SHORT = ("prefill-512", "decode-1", "decode-8")
BATCHES = (*SHORT, "decode-16", "decode-32")
PEERS = ("llama.cpp", "openvino-fp16", "openvino-int8", "openvino-int4", "vllm")


@dataclass(frozen=True)
class Part:
    """One part of the table. `gguf`: a file in `--models`, empty for the default model. `peers`:
    the peers measured beside us."""

    gguf: str = ""
    peers: tuple[str, ...] = ("llama.cpp",)
    workloads: tuple[str, ...] = SHORT
    repeats: int = 3
    options: str = ""


PARTS = {
    "starts": Part(repeats=7),
    "batches": Part(peers=PEERS, workloads=BATCHES),
    "mixed": Part(peers=PEERS, workloads=("mixed-16",), repeats=1),
    "mistral.rs": Part(peers=("mistral.rs",), repeats=1),  # one burst takes minutes
    "arrivals": Part(peers=()),
    "share": Part(peers=()),
    "2k": Part(peers=("llama.cpp-long",), workloads=("decode-at-2k",)),
    "8k": Part(peers=("llama.cpp-long",), workloads=("decode-at-8k",), repeats=1),
    "q8_0": Part("forms/smollm2.Q8_0.gguf"),
    "f16": Part("forms/smollm2.F16.gguf"),
    "bf16": Part("forms/smollm2.BF16.gguf"),
    "1.5b": Part("qwen15b/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", options="--context 2048"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench campaign", description=__doc__)
    parser.add_argument(
        "--peers", type=Path, required=True, help="folder with the peers, see bench/peers.md"
    )
    parser.add_argument("--gguf", type=Path, required=True, help="GGUF file of the default model")
    parser.add_argument(
        "--models", type=Path, required=True, help="folder with the other GGUF files"
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", type=Path, required=True, help="folder for one JSON file per part")
    arguments = parser.parse_args()
    for name in arguments.parts.split(","):
        began = time.perf_counter()
        result = _measure(name, arguments)
        compare.save(result, arguments.out / f"{name}.json")
        print(f"\n{name}, {time.perf_counter() - began:.0f} s\n")
        print(compare.table(result, _table_workloads(name), "penstock"), flush=True)
        if PARTS[name].gguf and "decode-1" in PARTS[name].workloads:
            print(_floor(arguments.models / PARTS[name].gguf, result), flush=True)


def _measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    part = PARTS[name]
    gguf = arguments.models / part.gguf if part.gguf else arguments.gguf
    penstock = ours(str(gguf) if part.gguf else DEFAULT, PORT, part.options)
    makers = [MAKERS[peer] for peer in part.peers]
    peers = make_peers(makers, arguments.peers, PORT + 1, gguf)
    match name:
        case "arrivals":
            return arrivals.measure([penstock], part.repeats)
        case "share":
            return share.measure(penstock, part.repeats)
        case "starts":
            return starts.measure([penstock, *peers], part.repeats)
    workloads = [ALL[workload] for workload in part.workloads]
    return compare.compare([penstock, *peers], workloads, part.repeats)


def _table_workloads(name: str) -> list[Workload]:
    if name == "starts":
        return []
    if name in ("arrivals", "share"):
        return [arrivals.STREAMS if name == "arrivals" else share.DECODE]
    return [ALL[workload] for workload in PARTS[name].workloads]


def _floor(gguf: Path, result: dict[str, Any]) -> str:
    """Return the bandwidth bound of one stream, which reads all weights per token."""
    size_gb = gguf.stat().st_size / 1e9
    read = result["machine"]["dram_read_gb_s"]
    return f"one stream reads {size_gb:.2f} GB/token: {read / size_gb:.0f} tok/s at {read} GB/s"


if __name__ == "__main__":
    main()
