"""The device script's checks reject wrong kernels, and its summary lists failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.device import check
from bench.device import transformers_check as oracle
from bench.device.engine import SMALL
from bench.device.machine import Bench
from bench.device.model_shapes import SHAPES
from bench.device.result_log import Record
from bench.device.summary import summary
from penstock.kernels.reference import ReferenceOps

BENCH = Bench("cpu", torch.float32, ReferenceOps(), rehearsed=True)


class BrokenOps(ReferenceOps):
    """The reference with one op that is subtly wrong."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self._broken = broken

    def attention(self, q: Any, inputs: Any, cache: Any, *others: Any) -> torch.Tensor:
        if self._broken == "attention":  # the last row sees one key too few
            contexts = inputs.context_lens.clone()
            contexts[-1] -= 1
            inputs = replace(inputs, context_lens=contexts)
        return super().attention(q, inputs, cache, *others)

    def linear(self, x: torch.Tensor, weight: Any) -> torch.Tensor:
        result = super().linear(x, weight)
        if self._broken == "linear":  # one column of the last row is not written
            result[-1, -1] = float("nan")
        return result

    def sample(self, logits: torch.Tensor, rows: Any) -> torch.Tensor:
        drawn = super().sample(logits, rows)
        return drawn.roll(1) if self._broken == "sample" else drawn


@pytest.mark.parametrize("broken", ["attention", "linear", "sample"])
def test_a_wrong_kernel_fails_its_checks_and_no_others(broken: str) -> None:
    bench = replace(BENCH, ops=BrokenOps(broken))
    record = Record("check", None)
    failed = {each.name for each in check.checks(bench) if not check._passes(bench, record, each)}
    assert failed and all(name.startswith(broken) for name in failed)


def test_a_kernel_that_raises_fails_its_check() -> None:
    def raises() -> torch.Tensor:
        raise RuntimeError("launch failed")

    broken = check.Check("linear", raises, lambda: torch.ones(2, 2))
    assert not check._passes(BENCH, Record("check", None), broken)


def test_the_worst_row_reveals_errors_that_the_whole_hides() -> None:
    truth = torch.ones(1000, 8)
    out = truth.clone()
    out[500] *= 1.1
    whole, worst = check.errors(out, truth)
    assert whole < check.WHOLE and worst > check.WORST


def test_transformers_rejects_an_unlikely_token() -> None:
    shape = SHAPES["qwen3-0.6b"].small()
    with oracle.open_runtime(BENCH, Record("check", None), shape, SMALL) as runtime:
        ((prompt, answer),) = oracle._answers(runtime, SMALL, (5,))
    judge = oracle._judge(BENCH, shape)
    assert oracle._below(BENCH, judge, prompt, answer) <= oracle.MOST_BELOW
    wrong = [*answer[:-1], (answer[-1] + 1) % shape.vocab]
    assert oracle._below(BENCH, judge, prompt, wrong) > oracle.MOST_BELOW


def test_the_summary_names_failures_and_compares_with_peers_on_the_same_card() -> None:
    run = {"section": "qwen3-8b", "name": "run 256 x 1024/1024", "out_tok_s": 16994.0}
    lines = [
        {"section": "limits", "name": "NVIDIA H200", "multiprocessors": 132},
        {"section": "ops", "name": "rms_norm", "failed": "RuntimeError: x"},
        {"section": "check", "name": "linear", "passed": "False", "error": 0.5, "worst": 1.0},
        {"section": "check", "name": "attention", "passed": "True", "error": 0.0, "worst": 0.0},
        run,
    ]
    told = "\n".join(summary(lines))
    assert "FAILED ops: rms_norm: RuntimeError: x" in told
    assert "WRONG  check: linear" in told
    assert "check: 1 comparisons passed" in told
    assert "2.00 x SGLang, FlashInfer" in told
    assert "SGLang" not in "\n".join(summary([{**lines[0], "name": "NVIDIA A100"}, run]))
