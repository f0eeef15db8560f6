"""What rank 0 tells the others, beside what it does itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from scheduled_requests import Request, generate, scheduler_of
from tp_runtimes import start_single

from penstock.dialog import Sampling
from penstock.runtime.ranks.messages import Collect, Step
from penstock.runtime.ranks.runtime import TensorParallelRuntime
from tests.support.checkpoints.small_llama import VOCAB, write_small_llama


class Told:
    """Ranks that do nothing: what they are told, in its order."""

    def __init__(self) -> None:
        self.orders: list[msgspec.Struct] = []

    def tell(self, message: msgspec.Struct) -> None:
        self.orders.append(message)


def asked(first: int) -> list[Request]:
    prompt = tuple((first * 37 + 11 * place * place) % VOCAB for place in range(80))
    return [Request(prompt, 8, Sampling(temperature=0.0))]


def test_the_others_wait_for_copies_that_have_landed_on_rank_0(tmp_path: Path) -> None:
    """The scheduler reckons with those; that theirs are there, nobody has asked."""
    own = start_single(write_small_llama(tmp_path / "small-llama"), lora=None)
    told, ranks = Told(), Any
    runtime = TensorParallelRuntime(own, told, ranks, own._model._decoder.spec)  # type: ignore[arg-type]
    tight = scheduler_of(runtime, num_blocks=-(-(80 + 8) // runtime.info.block_size) + 1)
    last_restored: list[int] = []  # after each step
    collect = own.collect

    def note() -> Any:
        result = collect()
        last_restored.append(result.last_restored)
        return result

    own.collect = note  # type: ignore[method-assign]
    for first in (1, 2, 1):
        generate(runtime, tight, asked(first))  # type: ignore[arg-type]
    assert tight.gauges().host_cache_restores > 0 and last_restored[-1] > 0
    steps = [order for order in told.orders if isinstance(order, Step)]
    assert len(steps) == len(last_restored)
    for step, known in zip(steps[1:], last_restored, strict=False):
        assert step.plan.awaits >= known
    assert [type(order) for order in told.orders] == [Step, Collect] * len(steps)
    own.close()
