"""Measure the pauses between tokens while the weights are quantized again.

    python -m bench requantize MODEL --to int8 int4 none

An engine process serves MODEL, whose weights are floats, to some greedy streams. After a while they
are quantized again, type by type. For each change, the longest time between two outputs of a stream
is printed beside the median step without a job, and the share of the cores that the hypervisor gave
to other guests meanwhile, which makes steps longer too.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.harness.load_client import percentile
from bench.harness.machine_facts import Clock, facts
from penstock.config import EngineSettings
from penstock.config.weight_types import AS_STORED, parse_weight_type
from penstock.dialog import Sampling
from penstock.engine.ipc.client import EngineClient
from penstock.engine.processes.supervisor import EngineSupervisor
from penstock.engine.types import TokenRequest
from penstock.engine.weight_orders import AskWeights, Requantize

POLL_S = 0.05
CACHED_EACH = 1024
"""The tokens of a sequence for which the default KV cache has memory."""


@dataclass
class Gaps:
    """The times of the outputs of all streams. A gap is the time between two of one stream."""

    last_s: dict[str, float] = field(default_factory=dict)
    seen: list[tuple[float, float]] = field(default_factory=list)  # (end, length)

    def note(self, stream: str) -> None:
        """Note an output of a stream now."""
        now = time.perf_counter()
        if stream in self.last_s:
            self.seen.append((now, now - self.last_s[stream]))
        self.last_s[stream] = now

    def longest(self, began_s: float) -> tuple[float, float]:
        """Return the end and the length of the longest gap that ended after `began_s`."""
        return max((one for one in self.seen if one[0] >= began_s), key=lambda one: one[1])

    def since(self, began_s: float) -> list[float]:
        """Return the gaps that ended after `began_s`."""
        return [length for end, length in self.seen if end >= began_s]


async def stream(client: EngineClient, name: str, context: int, gaps: Gaps) -> None:
    """Generate one answer after another, each as long as the context allows."""
    random = np.random.default_rng(len(name))
    vocabulary = client.info.vocab_size
    number = 0
    while True:
        prompt = tuple(random.integers(0, vocabulary, 32).tolist())
        id = f"{name}-{number}"
        asked = TokenRequest(id, prompt, Sampling(temperature=0.0), 0, context - 40)
        async for _ in client.generate(asked):
            gaps.note(id)
        number += 1


async def measure(model: str, types: list[str], streams: int, context: int, base_s: float) -> None:
    """Serve the model and print a row per change, each after `base_s` seconds without a job."""
    settings = EngineSettings(
        model=model,
        device="cpu",
        max_model_len=context,
        max_num_seqs=streams * -(-context // CACHED_EACH),
    )
    supervisor = EngineSupervisor(settings)
    await supervisor.start()
    print(await supervisor.wait_ready())
    client = EngineClient(supervisor.socket_path)
    await client.wait_ready()
    gaps = Gaps()
    tasks = [asyncio.create_task(stream(client, f"s{n}", context, gaps)) for n in range(streams)]
    print(
        "| weights | to | job s | median step ms | 99 % ms | longest ms | median in job ms |"
        " 99 % in job ms | longest in job ms | longest / median step | its end in the job s |"
        " stolen without, in job |"
    )
    print("|" + "---|" * 12)
    before = "file"
    try:
        await asyncio.sleep(1.0)
        for wanted in types:
            calm_s, clock = time.perf_counter(), Clock()
            await asyncio.sleep(base_s)
            calm, stolen = gaps.since(calm_s), [clock.stolen_share()]
            clock = Clock()
            began_s = time.perf_counter()
            await client.change_weights(Requantize(_form(wanted)))
            while (job := (await client.change_weights(AskWeights())).job) is None or (
                job.status == "running"
            ):
                await asyncio.sleep(POLL_S)
            took_s = time.perf_counter() - began_s
            assert job.status == "done", job
            await asyncio.sleep(1.0)
            stolen.append(clock.stolen_share())
            busy, median = gaps.since(began_s), statistics.median(calm)
            middle = [statistics.median(busy), percentile(busy, 0.99)]
            numbers = [median, percentile(calm, 0.99), max(calm), *middle, max(busy)]
            cells = [before, wanted, f"{took_s:.1f}", *(f"{1e3 * one:.1f}" for one in numbers)]
            cells += [f"{max(busy) / median:.2f}", f"{gaps.longest(began_s)[0] - began_s:.1f}"]
            cells += [", ".join(f"{share:.1%}" for share in stolen)]
            print(f"| {' | '.join(cells)} |", flush=True)
            before = wanted
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        await supervisor.stop()


def _form(text: str) -> str | None:
    form = parse_weight_type(text)
    if form is None:
        raise SystemExit(f"{text} is no type of weights")
    return None if form == AS_STORED else form


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench requantize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--to", nargs="+", default=["int8", "int4", "none"])
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument(
        "--base", type=float, default=30.0, help="seconds without a job before each change"
    )
    given = parser.parse_args()
    print(facts(), flush=True)
    asyncio.run(measure(str(given.model), given.to, given.streams, given.context, given.base))


if __name__ == "__main__":
    main()
