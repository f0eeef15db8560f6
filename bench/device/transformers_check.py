"""Independent check of the serving path: transformers scores every token that the engine generated.

The engine answers greedily through the serving path (library, packaged kernels, captured graphs,
mixed steps). transformers reads prompt and answer in float32. Each generated token must be its best
one, or below it by no more than bfloat16 rounding explains, in standard deviations of the logits. A
wrong token is several standard deviations below.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from bench.device.engine import (
    FULL,
    GREEDY,
    SMALL,
    Sizes,
    cached_checkpoint,
    engine_settings,
    open_runtime,
)
from bench.device.machine import Bench
from bench.device.model_shapes import SHAPES, Shape
from bench.device.result_log import Record
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.runtime.gpu.runtime import GpuRuntime

MOST_BELOW = 0.25
"""How far a generated token may be below the best one, in standard deviations of its row of
logits."""

PROMPTS: tuple[int, ...] = (1, 2, 17, 64, 127, 300, 511, 1024, 1500, 2500)
NEW = 24


def measure(bench: Bench, record: Record, name: str = "qwen3-0.6b") -> list[str]:
    """Run the check; return the names of the requests whose tokens transformers does not
    confirm."""
    shape, sizes, lengths = SHAPES[name], replace(FULL, prompt=max(PROMPTS)), PROMPTS
    if bench.rehearsed:
        shape, sizes, lengths = shape.small(), SMALL, (1, 5, 20)
    record.title(f"tokens of {name} through the serving path, checked by transformers in float32")
    with open_runtime(bench, record, shape, sizes) as runtime:
        answers = _answers(runtime, sizes, lengths)
    judge = _judge(bench, shape)
    failed = []
    for prompt, answer in answers:
        below = _below(bench, judge, prompt, answer)
        passed = below <= MOST_BELOW  # False for NaN
        record.line(f"oracle prompt {len(prompt)}", below=below, passed=str(passed))
        if not passed:
            failed.append(f"oracle prompt {len(prompt)}")
    return failed


def _answers(
    runtime: GpuRuntime, sizes: Sizes, lengths: tuple[int, ...]
) -> list[tuple[list[int], list[int]]]:
    """Submit prompts of these lengths at once; return them with their greedy answers."""
    core = EngineCore.for_runtime(runtime, engine_settings(sizes))
    vocab, new = core.info.vocab_size - 10, min(NEW, sizes.new)
    prompts = {
        str(length): [(7919 * length + 31 * place) % vocab + 3 for place in range(length)]
        for length in lengths
    }
    answers: dict[str, list[int]] = {name: [] for name in prompts}
    for name, prompt in prompts.items():
        core.submit(TokenRequest(name, tuple(prompt), GREEDY, seed=1, max_tokens=new))
    while core.has_work:
        for chunk in core.step():
            assert not chunk.error, chunk.error
            answers[chunk.id] += [token.token_id for token in chunk.tokens]
    assert all(len(answer) == new for answer in answers.values()), "an answer is too short"
    return [(prompts[name], answers[name]) for name in prompts]


def _judge(bench: Bench, shape: Shape) -> Any:
    """Load the same checkpoint in transformers, in float32."""
    import transformers

    folder = cached_checkpoint(shape, bench.device)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager" if bench.rehearsed else "sdpa"
    )
    return model.to(bench.device).eval()


@torch.no_grad()
def _below(bench: Bench, judge: Any, prompt: list[int], answer: list[int]) -> float:
    """Return how far the worst token of an answer is below the best one, in standard deviations."""
    ids = torch.tensor([prompt + answer[:-1]], device=bench.device)
    logits = judge(ids, logits_to_keep=len(answer)).logits[0].float()
    generated = torch.tensor(answer, device=bench.device)[:, None]
    behind = logits.max(dim=1).values - logits.gather(1, generated)[:, 0]
    return float((behind / logits.std(dim=1)).max())
