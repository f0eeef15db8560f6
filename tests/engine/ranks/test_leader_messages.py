"""The messages that rank 0 sends to the other ranks."""

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


class RecordingRanks:
    """Ranks that do nothing but record the messages."""

    def __init__(self) -> None:
        self.messages: list[msgspec.Struct] = []

    def send_all(self, message: msgspec.Struct) -> None:
        self.messages.append(message)


def asked(first: int) -> list[Request]:
    prompt = tuple((first * 37 + 11 * place * place) % VOCAB for place in range(80))
    return [Request(prompt, 8, Sampling(temperature=0.0))]


def test_other_ranks_wait_for_restores_that_are_complete_on_rank_0(tmp_path: Path) -> None:
    """The scheduler relies on the restores of rank 0; the other ranks are never asked about
    theirs."""
    own = start_single(write_small_llama(tmp_path / "small-llama"), lora=None)
    others, ranks = RecordingRanks(), Any
    runtime = TensorParallelRuntime(own, others, ranks, own._model._decoder.spec)  # type: ignore[arg-type]
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
    steps = [message for message in others.messages if isinstance(message, Step)]
    assert len(steps) == len(last_restored)
    for step, known in zip(steps[1:], last_restored, strict=False):
        assert step.plan.awaits >= known
    assert [type(message) for message in others.messages] == [Step, Collect] * len(steps)
    own.close()
