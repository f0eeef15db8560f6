"""The command line of `python -m bench media`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from bench.harness.machine_facts import facts
from bench.media import gap
from bench.media.encode import SHAPES, Options, measure, table
from bench.media.gap import CLOCKS
from bench.media.peers import command as peers

DESCRIPTION: Final = """Images, beside transformers in torch, on the same random weights.

encode   a prepared image through tower and projector, in process on both sides, alternating
gap      the time between the tokens of streams, alone and while images are encoded
peers    beside llama.cpp, mistral.rs and others (`bench media peers --help`)

The peer of `encode` is a Python with torch and transformers (`bench/peers.md`). It also makes the
weights. `gap` takes any model that reads images (`--model`).
"""


def main() -> None:
    """Measure and print the figures."""
    if sys.argv[1:2] == ["peers"]:
        peers.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        prog="bench media",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=["encode", "gap"])
    parser.add_argument("--peer", default=sys.executable, help="Python interpreter of the peer")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="comma-separated")
    parser.add_argument("--dtypes", default="f32,bf16", help="types of the weights")
    parser.add_argument("--size", default="1024x1024", help="width x height of the image")
    parser.add_argument("--tiles", type=int, default=0, help="encode the first ones; 0: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="default: one per core")
    parser.add_argument("--model", help="gap: a folder, or a name of the hub")
    parser.add_argument("--streams", default="1,4", help="gap: comma-separated numbers")
    parser.add_argument("--images", type=int, default=1, help="gap: images beside the streams")
    parser.add_argument("--most-steps", type=int, default=0, help="gap: give an image up after")
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="gap: what is counted"
    )
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()
    width, _, height = arguments.size.partition("x")
    size = int(height), int(width)
    if arguments.part == "gap":
        if not arguments.model:
            parser.error("argument --model: gap needs a model that reads images")
        _gap(arguments, size)
        return
    shapes, dtypes = arguments.shapes.split(","), arguments.dtypes.split(",")
    for name in shapes:
        if name not in SHAPES:
            parser.error(f"argument --shapes: {name!r} is not one of {', '.join(SHAPES)}")
    options = Options(size, arguments.tiles, arguments.peer, arguments.repeats, arguments.threads)
    rows = [measure(name, dtype, options) for name in shapes for dtype in dtypes]
    print(table(rows))
    if arguments.out:
        result = {"machine": facts(), "size": arguments.size, "rows": rows}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def _gap(arguments: argparse.Namespace, size: tuple[int, int]) -> None:
    """Measure and print the time between tokens."""
    options = gap.Options(
        size=size,
        images=arguments.images,
        streams=tuple(map(int, arguments.streams.split(","))),
        most_steps=arguments.most_steps,
        clock=arguments.clock,
        threads=arguments.threads,
    )
    result = gap.measure(arguments.model, options)
    print(gap.table(result))
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": facts()} | result, indent=1) + "\n")
