"""Measures the speed of an engine with random prompts and greedy sampling."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
from contextlib import aclosing
from dataclasses import dataclass

from penstock.base.ids import new_id
from penstock.dialog import Sampling
from penstock.engine.protocol import Engine
from penstock.engine.types import TokenRequest


@dataclass(frozen=True)
class Speed:
    """The result of one iteration.

    `first_tokens_s`: the time to the first token of each sequence, in seconds.
    `token_gaps_s`: the times between tokens, of all sequences, in seconds.
    `prompt_rate`: prompt tokens per second, over all sequences.
    `decode_rate`: generated tokens per second after the first token, over all sequences.
    """

    first_tokens_s: tuple[float, ...]
    token_gaps_s: tuple[float, ...]
    prompt_rate: float
    decode_rate: float

    @property
    def first_token_s(self) -> float:
        """The median time to the first token, in seconds."""
        return statistics.median(self.first_tokens_s)


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
    answers = await asyncio.gather(*runs)
    firsts = [answer[0][0] for answer in answers]
    decode_s = max(answer[-1][0] for answer in answers) - min(firsts)
    return Speed(
        first_tokens_s=tuple(first - began_s for first in firsts),
        token_gaps_s=tuple(gap for answer in answers for gap in token_gaps(answer)),
        prompt_rate=streams * prompt_len / (max(firsts) - began_s),
        decode_rate=streams * (gen_len - 1) / decode_s,
    )


def token_gaps(steps: list[tuple[float, int]]) -> list[float]:
    """Return the times between the tokens of an answer, in seconds. `steps`: the end of each step
    and its number of tokens; the tokens of one step share its time."""
    gaps: list[float] = []
    for (before_s, _), (end_s, count) in itertools.pairwise(steps):
        gaps += [(end_s - before_s) / count] * count
    return gaps


async def _generate(
    engine: Engine, prompt_len: int, gen_len: int, adapter: str
) -> list[tuple[float, int]]:
    """Generate one answer. Return the end of each step, in seconds of the monotonic clock, and its
    number of tokens."""
    vocab = engine.info.vocab_size
    request = TokenRequest(
        id=new_id("bench_"),
        token_ids=tuple(random.randrange(vocab) for _ in range(prompt_len)),
        sampling=Sampling(temperature=0.0),
        seed=0,
        max_tokens=gen_len,
        adapter=adapter,
    )
    steps: list[tuple[float, int]] = []
    async with aclosing(engine.generate(request)) as chunks:
        async for chunk in chunks:
            steps.append((chunk.step_time_s, max(len(chunk.tokens), 1)))
    return steps
