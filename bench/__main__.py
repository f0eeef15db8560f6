"""`python -m bench WHAT`: our server alone or beside the peers, and all else that is measured."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from bench import arrivals, compare, engine, share, starts
from bench.peers import MAKERS
from bench.targets import HttpTarget, Target, ours
from bench.workloads import ALL, STANDARD, Workload

T = TypeVar("T")

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
    peers, loads = _some_of(MAKERS), _some_of(ALL)
    standard = ",".join(workload.name for workload in STANDARD)
    parser.add_argument(
        "--with", dest="which", type=peers, default="llama.cpp", help=f"some of {','.join(MAKERS)}"
    )
    parser.add_argument(
        "--workloads", type=loads, default=standard, help=f"some of {','.join(ALL)}"
    )
    parser.add_argument("--python", default=sys.executable, help="whose penstock to measure")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve-args", default="", help="further options of `penstock serve`")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()
    workloads: list[Workload] = arguments.workloads
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


def _some_of(known: Mapping[str, T]) -> Callable[[str], list[T]]:
    """The type of an option: the named ones of `known`, with commas between the names."""

    def parse(text: str) -> list[T]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return [known[name] for name in names]

    return parse


def _ours(arguments: argparse.Namespace) -> Target:
    return ours(arguments.model, PORT, arguments.serve_args, arguments.python)


def _targets(arguments: argparse.Namespace) -> list[Target]:
    targets = [_ours(arguments)]
    if arguments.peers:
        makers = enumerate(arguments.which)
        targets += [make(arguments.peers, PORT + 1 + i, arguments.gguf) for i, make in makers]
    return targets


if __name__ == "__main__":
    main()
