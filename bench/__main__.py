"""`python -m bench WHAT`: benchmark our server alone, beside the peers, or one of its parts."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from bench import arrivals, engine, share, starts
from bench.harness import compare
from bench.harness.peers import MAKERS, make_peers
from bench.harness.targets import HttpTarget, Target, ours
from bench.harness.workloads import ALL, STANDARD, Workload

T = TypeVar("T")

OURS = "penstock"
KINDS: Final = {
    "server": "bursts over HTTP, beside the peers in --peers (the default)",
    "starts": "time from the command to the first answer",
    "engine": "the engine in this process, without HTTP and tokenizer",
    "share": "speed kept while another process occupies a core",
    "arrivals": "inter-token latency of streams while prompts arrive",
}
PORT = 18450
MODULES: Final = {
    "agent": "server tools: launches, calls, memory, leaks, accuracy with Python",
    "agreement": "tokens and log-probabilities of GGUF files, beside llama.cpp",
    "api": "one API process over a scripted engine",
    "bfcl": "accuracy of function calls (BFCL)",
    "campaign": "every row of the results table, beside the peers",
    "constraints": "JSON schemas and grammars: valid documents, first mask, cost",
    "embeddings": "sentence embeddings, beside torch",
    "random_model": "write a GGUF file with random weights in the shape of a published model",
    "encoders": "loss of each type of weights, beside the encoders of llama.cpp",
    "growth": "memory growth over many requests",
    "kv_cache": "decode with each type of KV cache, at several contexts",
    "lab": "matrix products at every instruction set, beside the limits of the processor",
    "long_prompt": "short requests while a long prompt is prefilled",
    "lora": "cost of LoRA adapters",
    "media": "images and recordings, beside transformers and other engines",
    "page": "the web page in Chromium: first paint, long chats, streams, CPU time at rest",
    "quality": "KL divergence from exact arithmetic",
    "requantize": "pauses while the weights are quantized again",
    "sampling": "share of a step spent on sampling",
    "soak": "soak test of a real server, with hostile clients and faults",
    "speculation": "speedup by speculative decoding",
    "speculation_steps": "cost of speculation on text that does not repeat",
    "tune_estimates": "speeds that tuning estimates, beside those of the loaded model",
}
"""Benchmarks with options of their own, each in the module `bench.NAME`."""


def main() -> None:
    """Run the benchmark that the command line names."""
    if sys.argv[1:2] and sys.argv[1] in MODULES:
        name = sys.argv.pop(1)
        importlib.import_module(f"bench.{name}").main()
        return
    arguments = _parser().parse_args()
    result, workloads = _measure(arguments)
    print(compare.table(result, workloads, OURS))
    if arguments.out:
        compare.save(result, arguments.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench",
        description=__doc__,
        epilog=f"WHAT:\n{_listed(KINDS)}\n\n"
        f"with options of their own (bench NAME --help):\n{_listed(MODULES)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", default="server", choices=KINDS, metavar="WHAT")
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="model, as for `penstock serve`"
    )
    parser.add_argument("--gguf", type=Path, help="the same weights as a GGUF file, for the peers")
    parser.add_argument("--peers", type=Path, help="folder with the peers, see bench/peers.md")
    peers, loads = _some_of(MAKERS), _some_of(ALL)
    standard = ",".join(workload.name for workload in STANDARD)
    parser.add_argument(
        "--with",
        dest="which",
        type=peers,
        default="llama.cpp",
        help=f"comma-separated peers: {','.join(MAKERS)}",
    )
    parser.add_argument(
        "--workloads",
        type=loads,
        default=standard,
        help=f"comma-separated workloads: {','.join(ALL)}",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="Python interpreter whose penstock is measured"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve-args", default="", help="further options of `penstock serve`")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    return parser


def _listed(names: Mapping[str, str]) -> str:
    return "\n".join(f"  {name:<18} {what}" for name, what in names.items())


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Workload]]:
    """Measure, and return the result and the workloads that have their own rows in it."""
    repeats: int = arguments.repeats
    workloads: list[Workload] = arguments.workloads
    match arguments.what:
        case "engine":
            return engine.measure(arguments.model, workloads, repeats), workloads
        case "starts":
            return starts.measure(_targets(arguments), repeats), []
        case "share":
            return share.measure(_ours(arguments), repeats), [share.DECODE]
        case "arrivals":
            servers = [t for t in _targets(arguments) if isinstance(t, HttpTarget)]
            return arrivals.measure(servers, repeats), [arrivals.STREAMS]
    return compare.compare(_targets(arguments), workloads, repeats), workloads


def _some_of(known: Mapping[str, T]) -> Callable[[str], list[T]]:
    """Return an argparse type that maps comma-separated names to their values in `known`."""

    def parse(text: str) -> list[T]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return [known[name] for name in names]

    return parse


def _ours(arguments: argparse.Namespace) -> Target:
    return ours(arguments.model, PORT, arguments.serve_args, arguments.python)


def _targets(arguments: argparse.Namespace) -> list[Target]:
    targets = [_ours(arguments)]
    if arguments.peers:
        targets += make_peers(arguments.which, arguments.peers, PORT + 1, arguments.gguf)
    return targets


if __name__ == "__main__":
    main()
