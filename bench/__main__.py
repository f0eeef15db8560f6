"""`python -m bench`: our server alone or beside the peers, the offline engine, a shared core, and
streams while prompts arrive. `python -m bench api`: an API process without a model; `campaign`: all
rows of the table beside the peers; `lora`: adapters; `soak`: a siege of a real server; `growth`:
its memory over many requests."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import api, arrivals, campaign, compare, engine, growth, lora, share, starts
from bench.peers import MAKERS
from bench.soak import run as soak
from bench.targets import HttpTarget, Target, ours
from bench.workloads import ALL, STANDARD

OURS = "penstock"
KINDS = ["server", "starts", "engine", "share", "arrivals"]
PORT = 18450


def main() -> None:
    if sys.argv[1:2] == ["api"]:
        api.main()
        return
    if sys.argv[1:2] == ["lora"]:
        del sys.argv[1]
        lora.main()
        return
    if sys.argv[1:2] == ["growth"]:
        del sys.argv[1]
        growth.main()
        return
    if sys.argv[1:2] == ["soak"]:
        del sys.argv[1]
        soak.main()
        return
    if sys.argv[1:2] == ["campaign"]:
        campaign.main()
        return
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
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
