"""The same checkpoint through transformers, if installed: continuous batching, and one answer by
`generate`."""

from __future__ import annotations

import time
from typing import Any

import torch

from bench.device.engine import FULL, SMALL, cached_checkpoint
from bench.device.machine import Bench
from bench.device.model_shapes import SHAPES
from bench.device.result_log import Record

NEW = 128
WIDTHS: tuple[int, ...] = (1, 32)


def measure(bench: Bench, record: Record, name: str) -> None:
    """Run the section `peers`."""
    import transformers

    shape, sizes, new, widths = SHAPES[name], FULL, NEW, WIDTHS
    if bench.rehearsed:
        shape, sizes, new, widths = shape.small(), SMALL, 4, (2,)
    record.title(f"{name} through transformers {transformers.__version__}")
    # torch's default, which our ops changed for this process
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    try:
        folder = cached_checkpoint(shape, bench.device)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=bench.dtype, attn_implementation="sdpa"
        )
        model = model.to(bench.device).eval()
        settings = transformers.GenerationConfig(
            max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        for width in widths:
            prompts = [
                [(97 * index + place) % 500 + 3 for place in range(sizes.prompt)]
                for index in range(width)
            ]
            _batched(bench, record, model, settings, prompts, new)
        _plain(bench, record, model, prompts[0], new)
    except Exception as error:  # a peer that is missing or does not run is not our failure
        record.line("transformers", failed=f"{type(error).__name__}: {str(error)[:300]}")


def _batched(
    bench: Bench, record: Record, model: Any, settings: Any, prompts: list[list[int]], new: int
) -> None:
    """Run all prompts at once through a manager that has run the same batch size before: its
    kernels are compiled, its graphs captured, its cache allocated. No prefix of the prompts is
    cached."""
    from transformers import ContinuousBatchingConfig

    # its default is a share of all memory, too much for a rehearsal
    sizes: dict[str, Any] = {"num_blocks": 16, "max_batch_tokens": 256} if bench.rehearsed else {}
    options = {
        "generation_config": settings,
        "continuous_batching_config": ContinuousBatchingConfig(allow_block_sharing=False, **sizes),
        "persistent_manager": True,
    }
    try:
        model.generate_batch(prompts, **options)
        bench.sync()
        began = time.perf_counter()
        answers = model.generate_batch(prompts, **options)
        bench.sync()
        taken = time.perf_counter() - began
    finally:
        model.destroy_cached_continuous_batching_manager()
    assert len(answers) == len(prompts), f"{len(answers)} of {len(prompts)} prompts were answered"
    tokens = sum(len(answer.generated_tokens) for answer in answers.values())
    name = f"continuous batching {len(prompts)} x {len(prompts[0])}/{new}"
    record.line(name, s=taken, out_tok_s=tokens / taken)


def _plain(bench: Bench, record: Record, model: Any, prompt: list[int], new: int) -> None:
    ids = torch.tensor([prompt], device=bench.device)
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}

    def run(count: int) -> float:
        began = time.perf_counter()
        model.generate(ids, max_new_tokens=count, min_new_tokens=count, **options)
        bench.sync()
        return time.perf_counter() - began

    run(2)
    few, many = run(2), run(new)
    record.line("generate, one answer", ms=1e3 * (many - few) / (new - 2))
