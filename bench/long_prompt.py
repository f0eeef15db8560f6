"""`python -m bench long_prompt`: short requests beside one long prompt, over HTTP.

One long prompt is computed alone, another while short requests arrive at Poisson times, and a third
alone. Each request asks for one token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any, Final

from bench.harness.load_client import percentile
from bench.harness.machine_facts import facts, wait_until_quiet
from bench.harness.targets import HttpTarget, ours
from bench.harness.workloads import Prompts, Workload

LONG: Final = Workload("long", 1, 5900, 1, "prompt_tok_s")
MOST_SHORT: Final = 256
PORT: Final = 18470


def main() -> None:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="bench long_prompt", description=__doc__)
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="model, as for `penstock serve`"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="Python interpreter whose penstock is measured"
    )
    parser.add_argument("--path", help="PYTHONPATH of the server; default: that of this process")
    parser.add_argument("--serve-args", default="", help="further options of `penstock serve`")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--short-tokens", type=int, default=20, help="prompt tokens of a short request"
    )
    parser.add_argument("--rate", type=float, default=1.0, help="short requests per second")
    arguments = parser.parse_args()
    target = ours(arguments.model, PORT, arguments.serve_args, arguments.python, arguments.path)
    short = Workload("short", MOST_SHORT, arguments.short_tokens, 1, "prompt_tok_s")
    print(json.dumps(measure(target, short, arguments.rate, arguments.repeats), indent=2))


def measure(target: HttpTarget, short: Workload, rate_per_s: float, repeats: int) -> dict[str, Any]:
    """Return times to first token in ms: `alone_ms` and `long_ms` of the long prompt, alone and
    beside the short requests, and `short_*_ms` of the short ones.

    `kept`: the median of alone / beside, the share of its speed that the long prompt keeps. A step
    takes about a twelfth of `alone_ms`.
    """
    target.start()
    try:
        target.burst(
            Prompts(seed=1000).take(LONG), LONG.new
        )  # the first prompt touches the cache's pages
        runs = [_run(target, short, rate_per_s, seed) for seed in range(repeats)]
    finally:
        target.stop()
    times = [ms for run in runs for ms in run["short_ms"]]
    return {
        "machine": facts(),
        "alone_ms": [run["alone_ms"] for run in runs],
        "long_ms": [run["long_ms"] for run in runs],
        "kept": statistics.median(run["alone_ms"] / run["long_ms"] for run in runs),
        "shorts": len(times),
        "short_p50_ms": percentile(times, 0.5),
        "short_p90_ms": percentile(times, 0.9),
        "short_max_ms": max(times),
    }


def _run(target: HttpTarget, short: Workload, rate_per_s: float, seed: int) -> dict[str, Any]:
    prompts = Prompts(seed)
    wait_until_quiet()
    (before,) = target.burst(prompts.take(LONG), LONG.new)
    beside, shorts = target.beside(prompts.take(LONG), LONG.new, prompts.take(short), rate_per_s)
    (after,) = target.burst(prompts.take(LONG), LONG.new)
    return {
        "alone_ms": round(1e3 * (before.ttft + after.ttft) / 2),
        "long_ms": round(1e3 * beside[0].ttft),
        "short_ms": [round(1e3 * trace.ttft) for trace in shorts],
    }


if __name__ == "__main__":
    main()
