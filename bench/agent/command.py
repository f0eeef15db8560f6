"""The command line of `python -m bench agent`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bench.agent import beside_streams, calls, evaluation, leaks
from bench.agent.figures import Section, table
from bench.harness.machine_facts import facts

PARTS: Final[dict[str, Callable[[argparse.Namespace], Section]]] = {
    "launch": lambda a: calls.launches(a.repeats),
    "warm": lambda a: calls.warm_calls(a.repeats * 5),
    "memory": lambda a: calls.idle_memory(),
    "streams": lambda a: beside_streams.measure(a.model, sessions=a.busy, repeats=a.runs),
    "leaks": lambda a: leaks.measure(a.calls, a.sessions),
    "eval": lambda a: evaluation.measure(
        a.model, base_url=a.base_url, only=a.only, at_once=a.at_once
    ),
}
"""The parts. `all` runs each of them."""
DESCRIPTION: Final = """The tools that the server runs, in the real sandbox.

launch   from a new container to the output of its first call
warm     overhead of a call of an interpreter that runs
memory   an idle Python session beside a bare interpreter
streams  streams of other clients beside sessions that compute
leaks    calls with kills and time-outs, and what is left of them
eval     questions that a model answers with Python and without
"""


def main() -> None:
    """Measure the named parts and print their figures."""
    parser = argparse.ArgumentParser(
        prog="bench agent",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="*", default=["all"], choices=[*PARTS, "all"])
    parser.add_argument(
        "--model",
        default="qwen2.5-coder-1.5b-instruct",
        help="model of `eval`; `streams` only uses its tokenizer",
    )
    parser.add_argument("--repeats", type=int, default=100, help="of `launch` and `warm`")
    parser.add_argument("--busy", type=int, default=32, help="busy sessions of `streams`")
    parser.add_argument("--runs", type=int, default=3, help="runs of `streams`")
    parser.add_argument("--calls", type=int, default=10_000, help="calls of `leaks`")
    parser.add_argument("--sessions", type=int, default=200, help="sessions of `leaks`")
    parser.add_argument("--base-url", help="of a running server, for `eval`")
    parser.add_argument("--only", default="", help="regular expression of question ids, for `eval`")
    parser.add_argument("--at-once", type=int, default=4, help="questions side by side, for `eval`")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()
    named = [*PARTS] if "all" in arguments.part else list(dict.fromkeys(arguments.part))
    sections = {}
    for name in named:
        print(f"bench agent: {name}", file=sys.stderr, flush=True)
        sections[name] = PARTS[name](arguments)
    print(table(sections))
    if "eval" in sections:
        print("\n" + evaluation.question_table(sections["eval"]))
    if arguments.out:
        result = msgspec.json.encode({"machine": facts(), "sections": sections})
        arguments.out.write_bytes(msgspec.json.format(result, indent=1) + b"\n")
