"""`python -m bench.device SECTION [--out FOLDER] [--rehearse]`: run one section on this machine's
GPU.

With --rehearse it runs on the CPU, in sizes that need seconds. `run.sh` runs several sections.
"""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.device import (
    adapters,
    check,
    counters,
    engine,
    experts,
    invariance,
    machine,
    mtp,
    ops,
    peers,
    products,
    profile,
    server,
    variants,
)
from bench.device.machine import Bench, open_bench
from bench.device.result_log import Record

Section = Callable[[Bench, Record, Path | None], None]

SECTIONS: dict[str, Section] = {
    "limits": lambda bench, record, _: machine.measure(bench, record),
    "check": lambda bench, record, _: check.measure(bench, record),
    "counters": lambda bench, record, _: counters.measure(bench, record),
    "ops": lambda bench, record, _: ops.measure(bench, record),
    "variants": variants.measure,
    "products": products.measure,
    "products-float8": partial(products.measure, only="-float8"),
    "qwen3-8b": lambda bench, record, _: engine.measure(bench, record, "qwen3-8b"),
    "qwen3-8b-fp8": lambda bench, record, _: engine.measure(bench, record, "qwen3-8b-fp8"),
    "llama-8b": lambda bench, record, _: engine.measure(bench, record, "llama-8b", False),
    "qwen3-0.6b": lambda bench, record, _: engine.measure(bench, record, "qwen3-0.6b"),
    "qwen3-30b-a3b": lambda bench, record, _: engine.measure(bench, record, "qwen3-30b-a3b"),
    "qwen3.5-2b": lambda bench, record, _: engine.measure(bench, record, "qwen3.5-2b"),
    "glm-4.7-flash-4-layers": lambda bench, record, _: engine.measure(
        bench, record, "glm-4.7-flash-4-layers"
    ),
    "mtp": lambda bench, record, _: mtp.measure(bench, record, "qwen3.5-2b"),
    "experts": lambda bench, record, _: experts.measure(bench, record),
    "profile": lambda bench, record, _: profile.measure(bench, record, "qwen3-8b"),
    "invariance": lambda bench, record, _: invariance.measure(bench, record, "qwen3-0.6b"),
    "adapters": lambda bench, record, _: adapters.measure(bench, record, "qwen3-8b"),
    "server": lambda bench, record, _: server.measure(bench, record, "qwen3-8b"),
    "peers": lambda bench, record, _: peers.measure(bench, record, "qwen3-8b"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.device", description=__doc__)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument(
        "--out", type=Path, help="folder; results are appended to its results.jsonl"
    )
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--kernels", choices=["auto", "triton"], default="auto")
    arguments = parser.parse_args()
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
    # SIGTERM raises SystemExit, so that a section that is cut off closes its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    name = arguments.section + ("" if arguments.kernels == "auto" else "-triton")
    record = Record(name, arguments.out)
    try:
        bench = open_bench(arguments.rehearse, arguments.kernels)
        SECTIONS[arguments.section](bench, record, arguments.out)
    except Exception:  # the outermost loop; the section's results so far are kept
        record.note(traceback.format_exc(limit=-6))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
