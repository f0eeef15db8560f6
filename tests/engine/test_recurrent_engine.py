"""A model with recurrent layers behind the engine's parts: its answers do not depend on how they
were computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lora_base_models import start
from scheduled_requests import (
    Outcome,
    Request,
    generate,
    poison,
    requests_over,
    scheduler_of,
)

from penstock.runtime import CpuRuntime
from tests.support.checkpoints.small_hybrid import VOCAB, write_small_hybrid


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_hybrid(tmp_path_factory.mktemp("model") / "small-hybrid")


def alone(runtime: CpuRuntime, requests: list[Request]) -> Outcome:
    answers = []
    for request in requests:
        poison(runtime)
        answers += generate(runtime, scheduler_of(runtime, prefix_caching=False), [request]).answers
    return Outcome(answers, [], 0)


def test_the_reference_answers_the_same_in_chunks_up_to_rounding(base: Path) -> None:
    runtime = start(base, lora=None, kernel_backend="reference")
    requests = [replace(one, max_tokens=4) for one in requests_over(VOCAB, 36)[2:6]]
    expected = alone(runtime, requests).answers
    poison(runtime)
    scheduler = scheduler_of(runtime, num_blocks=5, max_num_batched_tokens=23)
    for _ in range(2):
        answers = generate(runtime, scheduler, requests).answers
        for answer, other in zip(answers, expected, strict=True):
            assert [token for token, *_ in answer] == [token for token, *_ in other]
            logprobs = [[logprob for _, logprob, _ in one] for one in (answer, other)]
            assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-3)
    assert scheduler.gauges().state_snapshot_restores > 4
    runtime.close()
