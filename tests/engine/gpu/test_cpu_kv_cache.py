"""Blocks that go to the host and come back, on the runtime of a GPU, rehearsed on CPU tensors."""

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
        cpu_cache=CpuKvCacheIndex(facts.cpu_blocks, facts.most_saves),
    )


@pytest.mark.parametrize("dtype", ["f32", "auto"])
def test_an_answer_after_blocks_came_back_is_that_of_blocks_that_stayed(
    base: Path, dtype: str
) -> None:
    options: dict[str, Any] = {"dtype": dtype, "cache_mb": 1, "lora": None}
    runtime = start_gpu_runtime_on_cpu(base, settings("m", host_cache_mb=1, **options))
    roomy = scheduler(runtime)
    fresh = generate(runtime, roomy, asked(1))
    stayed = generate(runtime, roomy, asked(1))
    assert roomy.gauges().host_cache_saves == 0
    runtime._model.pool.fill_(torch.nan)
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
    """Computed in steps of another size, which torch rounds otherwise."""
    (answer,), (expected,) = outcome.answers, right.answers
    assert [token for token, _, _ in answer] == [token for token, _, _ in expected]
    logprobs = [logprob for _, logprob, _ in expected]
    assert [logprob for _, logprob, _ in answer] == pytest.approx(logprobs, abs=1e-3)


def test_the_memory_of_the_host_is_in_the_formula(base: Path) -> None:
    runtime = start_gpu_runtime_on_cpu(base, settings("m", cache_mb=1, host_cache_mb=3, lora=None))
    assert "to and from the host" in runtime.report
    assert "and 3 MiB of the host" in runtime.report
    runtime.close()


@pytest.mark.parametrize("host_mib", [0, 2])
def test_of_the_hosts_memory_an_engine_takes_what_is_not_of_the_device(
    base: Path, host_mib: int
) -> None:
    """What other engines, of a CPU, have left of it must not shrink by the GPU's own."""
    runtime = start_gpu_runtime_on_cpu(
        base, settings("m", cache_mb=1, host_cache_mb=host_mib, lora=None)
    )
    assert runtime.info.memory_bytes == host_mib << 20
    runtime.close()


def test_on_a_cpu_it_is_refused(base: Path) -> None:
    with pytest.raises(ModelError, match="host_cache_mb is of a GPU"):
        start(base, host_cache_mb=64)
