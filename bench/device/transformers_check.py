"""An independent judge of the serving path: transformers scores every token that the engine drew.

The engine answers greedily through what serves (library, packaged kernels, captured graphs, mixed
steps). transformers reads prompt and answer in float32; each drawn token must be its best one, or
below it by no more than the rounding of bfloat16 can explain, as a share of the logits' spread. A
wrong token lies several spreads below.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from bench.device.engine import FULL, GREEDY, SMALL, Sizes, engine_settings, kept_checkpoint, opened
from bench.device.machine import Bench
from bench.device.model_shapes import SHAPES, Shape
from bench.device.result_log import Record
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.runtime.gpu.runtime import GpuRuntime

MOST_BELOW = 0.25
"""Spreads (standard deviations of a row of logits) that a drawn token may lie below the best."""

PROMPTS: tuple[int, ...] = (1, 2, 17, 64, 127, 300, 511, 1024, 1500, 2500)
NEW = 24


def measure(bench: Bench, record: Record, name: str = "qwen3-0.6b") -> list[str]:
    """Names of what failed: requests whose tokens transformers does not confirm."""
    shape, sizes, lengths = SHAPES[name], replace(FULL, prompt=max(PROMPTS)), PROMPTS
    if bench.rehearsed:
        shape, sizes, lengths = shape.small(), SMALL, (1, 5, 20)
    record.title(f"tokens of {name} through the serving path, judged by transformers in float32")
    with opened(bench, record, shape, sizes) as runtime:
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
    """Prompts of these lengths, all asked at once, and their greedy answers."""
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
    """The same checkpoint in transformers, in float32."""
    import transformers

    folder = kept_checkpoint(shape, bench.device)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager" if bench.rehearsed else "sdpa"
    )
    return model.to(bench.device).eval()


@torch.no_grad()
def _below(bench: Bench, judge: Any, prompt: list[int], answer: list[int]) -> float:
    """How many spreads the worst token of an answer lies below the judge's best."""
    ids = torch.tensor([prompt + answer[:-1]], device=bench.device)
    logits = judge(ids, logits_to_keep=len(answer)).logits[0].float()
    drawn = torch.tensor(answer, device=bench.device)[:, None]
    behind = logits.max(dim=1).values - logits.gather(1, drawn)[:, 0]
    return float((behind / logits.std(dim=1)).max())
