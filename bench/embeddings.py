"""Embeddings of sentences: our engine beside transformers in torch, on the same weights.

`python -m bench embeddings FOLDER --peer PYTHON`: token ids in, vectors out, in process on both
sides, alternating. PYTHON is an interpreter with torch and transformers (`bench/peers.md`). Times
are CPU times, which a shared machine disturbs least; with --threads 1 they are those of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.harness.machine_facts import facts
from penstock.config import EngineSettings
from penstock.engine.local import LocalEngine
from penstock.engine.types import EmbedRequest

SHAPES = "32x1,32x32,256x1,256x32"  # tokens of a sentence, sentences
WORKER = Path(__file__).parent / "workers" / "torch_embedding_worker.py"
SECONDS = 0.25


class Side(Protocol):
    """Embeds token ids; returns the vectors and the seconds of the call."""

    def embed(self, sequences: list[list[int]]) -> tuple[np.ndarray, float]: ...


class Ours:
    """Our engine, in a thread of this process."""

    def __init__(self, folder: str, threads: int | None) -> None:
        self._loop = asyncio.new_event_loop()
        settings = EngineSettings(model=folder, threads=threads)
        self._engine = self._loop.run_until_complete(LocalEngine.start(settings))
        self._asked = 0

    def embed(self, sequences: list[list[int]]) -> tuple[np.ndarray, float]:
        began = time.process_time()
        data = self._loop.run_until_complete(self._embed(sequences))
        return np.frombuffer(data, "<f4").reshape(len(sequences), -1), time.process_time() - began

    async def _embed(self, sequences: list[list[int]]) -> bytes:
        self._asked += 1
        request = EmbedRequest(str(self._asked), tuple(map(tuple, sequences)))
        async with aclosing(self._engine.embed(request)) as chunks:  # type: ignore[type-var]
            return b"".join([chunk.vectors async for chunk in chunks])

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.close())
        self._loop.close()


class Torch:
    """transformers in its own process, which answers one line of JSON per call."""

    def __init__(self, python: str, folder: str, threads: int | None) -> None:
        self._process = subprocess.Popen(
            [python, str(WORKER), folder, str(threads or 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def embed(self, sequences: list[list[int]]) -> tuple[np.ndarray, float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(sequences) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return np.array(answer["vectors"], np.float32), answer["seconds"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def measure(
    sides: dict[str, Side], shapes: list[tuple[int, int]], repeats: int
) -> list[dict[str, Any]]:
    """Return one row per shape: median sentences per second of each side, and their largest
    difference."""
    random = np.random.default_rng(1)
    rows = []
    for tokens, sentences in shapes:
        ids = random.integers(1000, 20_000, (sentences, tokens)).tolist()
        vectors = {name: side.embed(ids)[0] for name, side in sides.items()}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(repeats):
            for name, side in sides.items():
                rates[name].append(sentences / _fastest(side, ids))
        first, *others = vectors.values()
        rows.append(
            {
                "tokens": tokens,
                "sentences": sentences,
                "differ_by": max((float(abs(first - v).max()) for v in others), default=0.0),
                **{name: round(statistics.median(values), 1) for name, values in rates.items()},
            }
        )
    return rows


def _fastest(side: Side, ids: list[list[int]]) -> float:
    """Return the least time of one call, out of those that fit a fixed time: the machine is
    shared."""
    times: list[float] = []
    while sum(times) < SECONDS:
        times.append(side.embed(ids)[1])
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench embeddings", description=__doc__)
    parser.add_argument("folder", help="model folder in sentence-transformers format")
    parser.add_argument("--peer", help="Python interpreter with torch and transformers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="default: one per core")
    parser.add_argument("--shapes", default=SHAPES, help="tokens x sentences, comma-separated")
    arguments = parser.parse_args()
    shapes = [shape.partition("x")[::2] for shape in arguments.shapes.split(",")]
    ours = Ours(arguments.folder, arguments.threads)
    sides: dict[str, Any] = {"penstock": ours}
    if arguments.peer:
        sides["torch"] = Torch(arguments.peer, arguments.folder, arguments.threads)
    try:
        rows = measure(sides, [(int(a), int(b)) for a, b in shapes], arguments.repeats)
    finally:
        for side in sides.values():
            side.close()
    json.dump({"machine": facts(), "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
