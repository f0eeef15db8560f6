"""CPU time that an API process takes for streamed tokens, over sockets, for one tree or several.

    python -m bench.lab.streamed_token_cpu --tree old=/tmp/old --tree new=. [--client openai]

A scripted engine paces the tokens (`bench.harness.scripted_engine`). The trees take turns, and each
figure is the median of `--repeats` runs: CPU milliseconds of the API process per 1,000 tokens while
all streams are open, which leaves out what it costs to open and end a request, and with them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import statistics
import sys
import threading
import time
from pathlib import Path

from bench.api import bodies
from bench.harness.epoll_client import drive
from bench.harness.machine_facts import facts
from bench.harness.pinned_api_server import ApiServer

POINTS = ((1, 250), (32, 1360), (128, 1360))
"""Streams, and the tokens/s of all of them."""
SECONDS, HEAD_S, TAIL_S = 6.0, 1.5, 0.5

CONTENT = re.compile(rb'"content":"( [^"]*)"')

Row = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", action="append", required=True, help="NAME=FOLDER")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--client", choices=("raw", "openai"), default="raw")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    trees = dict(tree.split("=", 1) for tree in arguments.tree)
    send = drive_raw if arguments.client == "raw" else drive_openai
    rows: dict[str, dict[str, list[Row]]] = {}
    for _ in range(arguments.repeats):
        for name, folder in trees.items():
            path = Path(folder).resolve()
            os.environ["PYTHONPATH"] = f"{path}/python:{path}"
            with ApiServer(arguments.model, sys.executable, log=False) as server:
                send(server, 1, 200)
                for streams, rate in POINTS:
                    server.pace(streams / rate)
                    row = run(server, send, streams, round(SECONDS * rate / streams))
                    rows.setdefault(f"{streams} streams", {}).setdefault(name, []).append(row)
                    print(name, streams, row, file=sys.stderr, flush=True)
    medians = {
        point: {
            name: {key: statistics.median(row[key] for row in runs) for key in runs[0]}
            for name, runs in by_tree.items()
        }
        for point, by_tree in rows.items()
    }
    print(json.dumps({"machine": facts(), "client": arguments.client, "rows": medians}, indent=1))


def run(server: ApiServer, send, streams: int, tokens: int) -> Row:  # type: ignore[no-untyped-def]
    """One run: `streams` answers of `tokens` tokens each, all at once."""
    marks: list[tuple[float, float]] = []

    def mark() -> None:
        for wait_s in (HEAD_S, SECONDS - HEAD_S - TAIL_S):
            time.sleep(wait_s)
            marks.append((time.monotonic(), server.cpu_s()))

    before_s = server.cpu_s()
    marker = threading.Thread(target=mark)
    marker.start()
    arrivals = send(server, streams, tokens)
    marker.join()
    whole_s = server.cpu_s() - before_s
    (start, start_cpu_s), (end, end_cpu_s) = marks
    between = sum(1 for arrived in arrivals if start <= arrived < end)
    return {
        "cpu_ms_per_1000_tokens": round(1e6 * (end_cpu_s - start_cpu_s) / between, 2),
        "with_requests": round(1e6 * whole_s / (streams * tokens), 2),
        "tokens_s": round(between / (end - start), 1),
        "cpu_share_of_core": round((end_cpu_s - start_cpu_s) / (end - start), 4),
    }


def drive_raw(server: ApiServer, streams: int, tokens: int) -> list[float]:
    """When each token came, by a raw HTTP/1.1 client."""
    asked = itertools.islice(bodies(stream=True, max_tokens=tokens), streams)
    done = drive(server.address, asked, streams, float("inf"))
    arrivals = []
    for exchange in done:
        assert exchange.ok, exchange.answer[:500]
        assert b'"completion_tokens":%d,' % tokens in exchange.answer
        for piece in exchange.pieces:
            words = sum(content.count(b" ") for content in CONTENT.findall(piece.data))
            arrivals += [piece.arrived_s] * words
    return arrivals


def drive_openai(server: ApiServer, streams: int, tokens: int) -> list[float]:
    """The same by the official client."""
    return asyncio.run(_drive_openai(server, streams, tokens))


async def _drive_openai(server: ApiServer, streams: int, tokens: int) -> list[float]:
    from openai import AsyncOpenAI

    host, port = server.address
    client = AsyncOpenAI(api_key="any", base_url=f"http://{host}:{port}/v1", max_retries=0)
    arrivals: list[float] = []

    async def one(number: int) -> None:
        stream = await client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": f"Name {number} rivers."}],
            max_tokens=tokens,
            stream=True,
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                words = chunk.choices[0].delta.content.count(" ")
                arrivals.extend([time.monotonic()] * words)

    await asyncio.gather(*(one(number) for number in range(streams)))
    await client.close()
    return arrivals


if __name__ == "__main__":
    main()
