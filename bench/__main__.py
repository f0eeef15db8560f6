"""`python -m bench WHAT`: our server alone or beside the peers, and all else that is measured."""

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
    "server": "bursts over HTTP, beside the peers that --peers has (the default)",
    "starts": "from the command to the first answer",
    "engine": "the engine in this process, without HTTP and text",
    "share": "what is left of the speed while another process takes a core",
    "arrivals": "how even streams stay while prompts arrive",
}
PORT = 18450
MODULES: Final = {
    "api": "an API process without a model behind it",
    "bfcl": "how many function calls are right",
    "campaign": "all rows of the table, beside the peers",
    "constraints": "JSON schemas and grammars: validity, first mask, cost",
    "embeddings": "sentences, beside torch",
    "growth": "memory over many requests",
    "long_prompt": "short requests beside one long prompt",
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
    return parser


def _listed(names: Mapping[str, str]) -> str:
    return "\n".join(f"  {name:<18} {what}" for name, what in names.items())


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Workload]]:
    """What was measured, and the workloads that have a row of their own in it."""
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
        targets += make_peers(arguments.which, arguments.peers, PORT + 1, arguments.gguf)
    return targets


if __name__ == "__main__":
    main()
