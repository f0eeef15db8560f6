"""The section `server`: the HTTP server on the GPU under a load client.

InferenceX's rule: random prompts; the lengths of prompts and answers are uniform between 0.8 L and
L; a limit on concurrent requests instead of a rate; warm-up requests first; no end token. It sends
fewer than InferenceX's 4 requests per concurrent one, because device time is short.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.device.engine import cached_checkpoint
from bench.device.machine import Bench
from bench.device.model_shapes import SHAPES
from bench.device.result_log import Record
from bench.harness.load_client import Client, Refused, Trace, percentile

SPREAD = 0.8
WAVES = 4
START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """Numbers of concurrent requests, and the longest prompt and answer in tokens."""

    concurrency: tuple[int, ...]
    prompt: int
    new: int


FULL = Load((1, 16, 64, 256), 1024, 256)
SMALL = Load((1, 3), 24, 6)


def measure(bench: Bench, record: Record, name: str) -> None:
    """Start the server with its defaults on the checkpoint of a shape, and load it."""
    shape, load = (SHAPES[name].small(), SMALL) if bench.rehearsed else (SHAPES[name], FULL)
    folder = cached_checkpoint(shape, bench.device)
    write_tokenizer(folder, shape.vocab)
    record.title(f"{name} over HTTP, {load.prompt} in / {load.new} out, InferenceX's client rule")
    context = max(2 * (load.prompt + load.new), 64)
    options = ["--device", "cpu" if bench.rehearsed else "cuda", "--context", str(context)]
    with running_server(folder, [*options, "--prefix-cache-n", "0"], record) as base_url:
        client = Client(base_url, "default")
        for concurrency in load.concurrency:
            _run(client, load, concurrency, concurrency, shape.vocab)  # warm-up
            traces, taken_s = _run(client, load, concurrency, WAVES * concurrency, shape.vocab)
            _record_figures(record, concurrency, traces, taken_s)


def _run(
    client: Client, load: Load, concurrency: int, count: int, vocab: int
) -> tuple[list[Trace], float]:
    """Send `count` requests, `concurrency` at a time; return their traces and the total seconds."""
    source = random.Random(concurrency * 1000 + count)

    def length(most: int) -> int:
        return source.randint(int(SPREAD * most), most)

    asked = [
        ([source.randrange(300, vocab) for _ in range(length(load.prompt))], length(load.new))
        for _ in range(count)
    ]

    async def run() -> list[Trace]:
        free, start = asyncio.Semaphore(concurrency), time.perf_counter()

        async def one(prompt: list[int], new: int) -> Trace:
            async with free:
                return await client.request(prompt, new, start)

        return await asyncio.gather(*(one(*each) for each in asked))

    began = time.perf_counter()
    traces = asyncio.run(run())
    return traces, time.perf_counter() - began


def _record_figures(record: Record, concurrency: int, traces: list[Trace], taken_s: float) -> None:
    ttft = [trace.ttft for trace in traces]
    tpot = [
        (trace.times[-1] - trace.times[0]) / (len(trace.times) - 1)
        for trace in traces
        if len(trace.times) > 1
    ]
    record.line(
        f"server {concurrency}",
        out_tok_s=sum(len(trace.times) for trace in traces) / taken_s,
        ttft_p50_ms=1e3 * statistics.median(ttft),
        ttft_p99_ms=1e3 * percentile(ttft, 0.99),
        tpot_p50_ms=1e3 * statistics.median(tpot) if tpot else None,
        tpot_p99_ms=1e3 * percentile(tpot, 0.99) if tpot else None,
        requests=len(traces),
    )


@contextmanager
def running_server(folder: Path, options: list[str], record: Record) -> Iterator[str]:
    """Start a server of that model and yield its address, `.../v1`. Raises RuntimeError if it does
    not start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "penstock", "serve", str(folder), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--disable-access-log", *options]
    log = folder.parent / "server.log"
    began = time.perf_counter()
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        base_url = f"http://127.0.0.1:{port}/v1"
        _wait(Client(base_url, "default"), process, log)
        record.line("start to first answer", s=time.perf_counter() - began)
        yield base_url
    finally:
        process.terminate()
        process.wait(60)


def _wait(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    began = time.perf_counter()
    while True:
        try:
            asyncio.run(client.burst([[300, 301, 302]], 1))
            return
        except (OSError, Refused, asyncio.IncompleteReadError):
            if process.poll() is not None or time.perf_counter() - began > START_TIMEOUT_S:
                raise RuntimeError(f"the server did not start: {log.read_text()[-1500:]}") from None
            time.sleep(0.05)


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Write a byte-level tokenizer of `vocab` tokens for a checkpoint with random weights: every
    byte, then words made of digits."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"Ġ{number}" for number in range(vocab - len(letters)))]
    made = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
