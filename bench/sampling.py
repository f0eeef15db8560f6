"""`python -m bench sampling`: share of a step spent on sampling, feature by feature.

Runs real steps of the model at 16 rows. All time outside the forward pass (row tables, logit
adjustments, random choice, log probabilities) counts as sampling. Each feature is on for every row.
Prompts repeat a small vocabulary, so that penalties and DRY have much to list.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.machine_facts import facts
from penstock.config import EngineSettings
from penstock.dialog import Sampling, SequenceBreaker
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.kernels.step_inputs import StepInputs
from penstock.runtime import CpuRuntime, load_runtime
from penstock.runtime.protocol import Masks
from penstock.scheduler import StepPlan

ROWS, PROMPT, STEPS, WORDS = 16, 128, 60, 300

FILTERS = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02}
BIAS = {"logit_bias": dict.fromkeys(range(1000, 1300), 0.5)}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
DRY = {
    "dry_multiplier": 0.8,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_breakers": (SequenceBreaker(np.arange(500, dtype=np.int32).tobytes()),),
}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-k, top-p, min-p": FILTERS,
    "bias of 300 tokens": {"temperature": 0.0, **BIAS},
    "penalties": {"temperature": 0.0, **PENALTIES},
    "DRY": {"temperature": 0.0, **DRY},
    "mask": {"temperature": 0.0},
    "5 logprobs": {"temperature": 0.0},
    "everything": {**FILTERS, **BIAS, **PENALTIES, **DRY},
}
MASKED, LOGPROBS = ("mask", "everything"), ("5 logprobs", "everything")


class TimedBackend:
    """A backend that records the time of its forward passes."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.forward_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def logits(self, inputs: StepInputs[Any]) -> Any:
        began = time.perf_counter()
        logits = self._backend.logits(inputs)
        self.forward_s = time.perf_counter() - began
        return logits


class HalfMasks:
    """Token masks, a different one per row, given as words and as single tokens."""

    def __init__(self, vocabulary: int) -> None:
        draw = np.random.default_rng(2)
        shape = (ROWS, -(-vocabulary // 32))
        self._words = draw.integers(0, 2**32, shape, dtype=np.uint32)
        self._words[:, ::2] = 0xFFFFFFFF
        self._mask_of = np.arange(ROWS, dtype=np.int32)

    def wait(self) -> tuple[Any, Any]:
        return self._words, self._mask_of


class TimedRuntime:
    """A runtime that records (forward pass, rest) in seconds for steps in which every row samples
    one token, and applies `masks` to them."""

    def __init__(self, runtime: CpuRuntime, masks: Masks | None) -> None:
        self._backend = TimedBackend(runtime._backend)
        self._runtime = CpuRuntime(runtime._rows, self._backend, runtime.info, "")
        self._masks = masks
        self.steps: list[tuple[float, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        assert masks is None
        # A step that samples fewer rows (during prefill) has no masks of this shape.
        whole = sum(chunk.samples for chunk in plan.chunks) == ROWS
        began = time.perf_counter()
        self._runtime.submit(plan, self._masks if whole else None)
        total = time.perf_counter() - began
        if whole and plan.num_tokens == ROWS:
            self.steps.append((self._backend.forward_s, total - self._backend.forward_s))


def measure(model: str, repeats: int) -> dict[str, Any]:
    """Return medians over the steps of all runs: sampling time in microseconds and its share of a
    step."""
    settings = EngineSettings(
        model=model,
        max_num_seqs=ROWS,
        max_model_len=512,
        max_num_batched_tokens=ROWS * PROMPT,
        enable_prefix_caching=False,
    )
    loaded = load_runtime(settings)
    assert isinstance(loaded, CpuRuntime)
    steps: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(repeats):
        for name in CASES:
            steps[name] += _steps(loaded, settings, name)
    loaded.close()
    return {"machine": facts(), "draw": {name: _figures(of) for name, of in steps.items()}}


def _steps(loaded: CpuRuntime, settings: EngineSettings, name: str) -> list[tuple[float, float]]:
    """Return (forward pass, rest) of each decode step, in seconds."""
    masks = HalfMasks(loaded.info.vocab_size) if name in MASKED else None
    runtime = TimedRuntime(loaded, masks)
    core = EngineCore.for_runtime(runtime, settings)
    draw = np.random.default_rng(7)
    for row in range(ROWS):
        words = draw.zipf(1.3, PROMPT) % WORDS + 500 + 7 * row
        request = TokenRequest(
            id=str(row),
            token_ids=tuple(words.tolist()),
            sampling=Sampling(**CASES[name]),
            seed=row,
            max_tokens=STEPS + 1,
            top_logprobs=5 if name in LOGPROBS else None,
        )
        core.submit(request)
    while core.has_work:
        core.step()
    return runtime.steps


def _figures(steps: list[tuple[float, float]]) -> dict[str, float]:
    forward, rest = (statistics.median(part) for part in zip(*steps, strict=True))
    return {
        "steps": len(steps),
        "forward_ms": round(1e3 * forward, 2),
        "draw_us": round(1e6 * rest),
        "share_percent": round(100 * rest / (forward + rest), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench sampling", description=__doc__)
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="model, as for `penstock serve`"
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()
    result = measure(arguments.model, arguments.repeats)
    print(f"{'':24}{'forward ms':>12}{'sample us':>10}{'share %':>10}")
    for name, row in result["draw"].items():
        print(f"{name:24}{row['forward_ms']:12}{row['draw_us']:10}{row['share_percent']:10}")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
