"""Measures the speed of an engine with random prompts and greedy sampling."""

from __future__ import annotations

import asyncio
import random
import statistics
from contextlib import aclosing
from dataclasses import dataclass

from rich.table import Table

from penstock.base.ids import new_id
from penstock.dialog import Sampling
from penstock.engine.protocol import Engine
from penstock.engine.types import TokenRequest


@dataclass(frozen=True)
class Speed:
    """The result of one iteration.

    `first_token_s`: median time to the first token, in seconds.
    `prompt_rate`: prompt tokens per second, over all sequences.
    `decode_rate`: generated tokens per second after the first token, over all sequences.
    """

    first_token_s: float
    prompt_rate: float
    decode_rate: float


async def measure(
    engine: Engine, prompt_len: int, gen_len: int, streams: int, adapter: str = ""
) -> Speed:
    """Run one iteration and return its speed. Prompts are random, so they miss the prefix cache.

    `prompt_len`, `gen_len`: tokens of each prompt and each answer.
    `streams`: number of concurrent sequences.
    `adapter`: the adapter revision to use; "": none.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    runs = [_generate(engine, prompt_len, gen_len, adapter) for _ in range(streams)]
    times = await asyncio.gather(*runs)
    first_s = statistics.median(first for first, _ in times) - began_s
    all_prompts_s = max(first for first, _ in times) - began_s
    decode_s = max(last for _, last in times) - min(first for first, _ in times)
    return Speed(
        first_token_s=first_s,
        prompt_rate=streams * prompt_len / all_prompts_s,
        decode_rate=streams * (gen_len - 1) / decode_s,
    )


async def _generate(
    engine: Engine, prompt_len: int, gen_len: int, adapter: str
) -> tuple[float, float]:
    """Generate one answer. Return the times of its first and last token, in seconds of the
    monotonic clock."""
    vocab = engine.info.vocab_size
    request = TokenRequest(
        id=new_id("bench_"),
        token_ids=tuple(random.randrange(vocab) for _ in range(prompt_len)),
        sampling=Sampling(temperature=0.0),
        seed=0,
        max_tokens=gen_len,
        adapter=adapter,
    )
    steps: list[float] = []
    async with aclosing(engine.generate(request)) as chunks:
        async for chunk in chunks:
            steps.append(chunk.step_time_s)
    return steps[0], steps[-1]


def speed_table(title: str, measured: list[Speed]) -> Table:
    """Return a table with the median, minimum and maximum of each figure in `measured`."""
    table = Table("", "median", "min", "max", title=title, title_justify="left", box=None)
    rows = (
        ("prefill, tok/s", [speed.prompt_rate for speed in measured], "{:,.0f}"),
        ("decode, tok/s", [speed.decode_rate for speed in measured], "{:,.1f}"),
        ("time to first token, ms", [1000 * speed.first_token_s for speed in measured], "{:,.1f}"),
    )
    for label, values, form in rows:
        figures = (statistics.median(values), min(values), max(values))
        table.add_row(label, *(form.format(figure) for figure in figures))
    return table
