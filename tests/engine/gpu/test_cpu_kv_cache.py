"""The CPU KV cache of the GPU runtime, run on CPU tensors: blocks are saved and restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_runtime_on_cpu import start_gpu_runtime_on_cpu
from lora_base_models import settings, start
from scheduled_requests import Outcome, Request, generate

from penstock.base.errors import ModelError
from penstock.dialog import Sampling
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.scheduler import CpuKvCacheIndex, Scheduler
from tests.support.checkpoints.small_llama import CONTEXT, write_small_llama

LENGTH = CONTEXT // 2


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("base") / "small-llama")


def asked(first: int) -> list[Request]:
    prompt = tuple((first * 37 + 11 * place * place) % 200 for place in range(LENGTH))
    return [Request(prompt, 8, Sampling(temperature=0.0))]


def scheduler(runtime: GpuRuntime, num_blocks: int | None = None) -> Scheduler:
    facts = runtime.info
    return Scheduler(
        num_blocks=num_blocks or facts.cache_blocks,
        block_size=facts.block_size,
        max_model_len=CONTEXT,
        max_num_seqs=2,
        max_num_batched_tokens=CONTEXT,
        cpu_cache=CpuKvCacheIndex(facts.cpu_blocks, facts.max_saves_per_step),
    )


@pytest.mark.parametrize("dtype", ["f32", "auto"])
def test_an_answer_from_restored_blocks_equals_one_from_kept_blocks(base: Path, dtype: str) -> None:
    options: dict[str, Any] = {"dtype": dtype, "kv_cache_memory_mb": 1, "lora": None}
    runtime = start_gpu_runtime_on_cpu(base, settings("m", cpu_kv_cache_memory_mb=1, **options))
    roomy = scheduler(runtime)
    fresh = generate(runtime, roomy, asked(1))
    stayed = generate(runtime, roomy, asked(1))
    assert roomy.gauges().host_cache_saves == 0
    runtime._model.pools.fill(torch.nan)
    needed = -(-(LENGTH + 8) // runtime.info.block_size) + 1
    tight = scheduler(runtime, needed)
    generate(runtime, tight, asked(1))
    generate(runtime, tight, asked(2))
    back = generate(runtime, tight, asked(1))
    assert back.cached_tokens == stayed.cached_tokens == [LENGTH - runtime.info.block_size]
    assert tight.gauges().host_cache_restores > 0
    assert back.answers == stayed.answers
    assert_near(back, fresh)
    runtime.close()


def assert_near(outcome: Outcome, right: Outcome) -> None:
    """Steps of another size are rounded differently by torch."""
    (answer,), (expected,) = outcome.answers, right.answers
    assert [token for token, _, _ in answer] == [token for token, _, _ in expected]
    logprobs = [logprob for _, logprob, _ in expected]
    assert [logprob for _, logprob, _ in answer] == pytest.approx(logprobs, abs=1e-3)


def test_host_memory_is_in_the_formula(base: Path) -> None:
    runtime = start_gpu_runtime_on_cpu(
        base, settings("m", kv_cache_memory_mb=1, cpu_kv_cache_memory_mb=3, lora=None)
    )
    assert "CPU KV cache buffers" in runtime.report
    assert "and 3 MiB of host memory" in runtime.report
    runtime.close()


@pytest.mark.parametrize("host_mib", [0, 2])
def test_only_the_cpu_kv_cache_counts_as_host_memory(base: Path, host_mib: int) -> None:
    """Host memory that CPU engines left must not shrink by the GPU's own memory."""
    runtime = start_gpu_runtime_on_cpu(
        base, settings("m", kv_cache_memory_mb=1, cpu_kv_cache_memory_mb=host_mib, lora=None)
    )
    assert runtime.info.memory_bytes == host_mib << 20
    runtime.close()


def test_a_cpu_refuses_a_cpu_kv_cache(base: Path) -> None:
    with pytest.raises(ModelError, match="cpu_kv_cache_memory_mb needs a GPU"):
        start(base, cpu_kv_cache_memory_mb=64)
