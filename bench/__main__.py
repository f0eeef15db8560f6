"""`python -m bench WHAT`: our server alone or beside the peers, and all else that is measured."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Final

from bench import arrivals, compare, engine, share, starts
from bench.peers import MAKERS
from bench.targets import HttpTarget, Target, ours
from bench.workloads import ALL, STANDARD

OURS = "penstock"
KINDS = ["server", "starts", "engine", "share", "arrivals"]
PORT = 18450
MODULES: Final = {
    "api": "an API process without a model behind it",
    "bfcl": "how many function calls are right",
    "campaign": "all rows of the table, beside the peers",
    "constraints": "JSON schemas and grammars: validity, first mask, cost",
    "embeddings": "sentences, beside torch",
    "growth": "memory over many requests",
    "lora": "what adapters cost",
    "quality": "divergence from exact arithmetic",
    "sampling": "what the draw takes of a step",
    "soak": "a siege of a real server",
    "speculation": "speed with speculation over speed without",
    "speculation_steps": "what speculation costs where nothing repeats",
}
"""What has options of its own, each in the module `bench.NAME`."""


def main() -> None:
    """Run what the command line names."""
    if sys.argv[1:2] and sys.argv[1] in MODULES:
        name = sys.argv.pop(1)
        importlib.import_module(f"bench.{name}").main()
        return
    others = "\n".join(f"  {name:<18} {what}" for name, what in MODULES.items())
    parser = argparse.ArgumentParser(
        prog="bench",
        description=__doc__,
        epilog=f"with options of their own (bench NAME --help):\n{others}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", default="server", choices=KINDS)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="what `serve` takes")
    parser.add_argument("--gguf", type=Path, help="the same weights as a GGUF file, for the peers")
    parser.add_argument("--peers", type=Path, help="the folder that peers.md fills")
    parser.add_argument("--with", dest="which", default="llama.cpp", help="peers, with commas")
    parser.add_argument("--workloads", default=",".join(w.name for w in STANDARD))
    parser.add_argument("--python", default=sys.executable, help="whose penstock to measure")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve-args", default="", help="further options of `penstock serve`")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()
    workloads = [ALL[name] for name in arguments.workloads.split(",")]
    if arguments.what == "engine":
        result = engine.measure(arguments.model, workloads, arguments.repeats)
    elif arguments.what == "starts":
        workloads = []
        result = starts.measure(_targets(arguments), arguments.repeats)
    elif arguments.what == "share":
        workloads = [share.DECODE]
        result = share.measure(_ours(arguments), arguments.repeats)
    elif arguments.what == "arrivals":
        workloads = [arrivals.STREAMS]
        servers = [t for t in _targets(arguments) if isinstance(t, HttpTarget)]
        result = arrivals.measure(servers, arguments.repeats)
    else:
        result = compare.compare(_targets(arguments), workloads, arguments.repeats)
    print(compare.table(result, workloads, OURS))
    if arguments.out:
        compare.save(result, arguments.out)


def _ours(arguments: argparse.Namespace) -> Target:
    return ours(arguments.model, PORT, arguments.serve_args, arguments.python)


def _targets(arguments: argparse.Namespace) -> list[Target]:
    targets = [_ours(arguments)]
    if arguments.peers:
        names = arguments.which.split(",")
        makers = [(MAKERS[name], PORT + 1 + i) for i, name in enumerate(names)]
        targets += [make(arguments.peers, port, arguments.gguf) for make, port in makers]
    return targets


if __name__ == "__main__":
    main()
