"""Adapters and the CPU KV cache on a GPU: copies on their own streams change no bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lora_base_models import LORA, draw_adapters, settings, with_adapters
from scheduled_requests import Request, generate, requests_over

from penstock.dialog import Sampling
from penstock.kernels.triton import TritonOps
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime.gpu.load import build_runtime
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.scheduler import NO_ADAPTER, CpuKvCacheIndex, Scheduler
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB, write_small_llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SLOTS = [0, 1, NO_ADAPTER, 2, 3]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("model") / "small-llama")


def start_gpu(base: Path, *, graphs: bool = True, **options: Any) -> GpuRuntime:
    asked = settings("m", kv_cache_memory_mb=8, deterministic=True, **options)
    model = load_model(files_at(base, "m"), asked.dtype)
    memory = plan_device_memory(model.spec, 1 << 20, asked, 8 << 30)
    ops = TritonOps("cuda:0", torch.bfloat16, products="invariant")
    return build_runtime(model, memory, asked, ops, graphs=graphs)


def scheduler(runtime: GpuRuntime, **options: Any) -> Scheduler:
    facts = runtime.info
    sizes = {
        "num_blocks": facts.cache_blocks,
        "block_size": facts.block_size,
        "max_model_len": CONTEXT,
        "max_num_seqs": 6,
        "max_num_batched_tokens": CONTEXT,
        "cpu_cache": CpuKvCacheIndex(facts.cpu_blocks, facts.max_saves_per_step),
    }
    return Scheduler(**(sizes | options))


def test_a_replay_with_adapters_equals_launches_and_each_request_alone(
    base: Path, tmp_path: Path
) -> None:
    requests = [r for r in requests_over(VOCAB, 60)[:6] if not r.sampling.logit_bias][:5]
    replayed = with_adapters(start_gpu(base, lora=LORA), tmp_path)
    launched = with_adapters(start_gpu(base, lora=LORA, graphs=False), tmp_path)
    together = [
        generate(runtime, scheduler(runtime), requests, SLOTS).answers
        for runtime in (replayed, launched)
    ]
    assert together[0] == together[1]
    for index, (request, slot) in enumerate(zip(requests, SLOTS, strict=True)):
        alone = generate(replayed, scheduler(replayed), [request], [slot]).answers
        assert alone == [together[0][index]]
    replayed.close()
    launched.close()


def test_a_slot_refilled_between_steps_is_never_read_half_written(
    base: Path, tmp_path: Path
) -> None:
    runtime = with_adapters(start_gpu(base, lora=LORA), tmp_path)
    adapters = runtime.adapters
    assert adapters is not None
    request = requests_over(VOCAB, 60)[2]
    right = [generate(runtime, scheduler(runtime), [request], [slot]).answers for slot in range(4)]
    packed = [adapters.pack(adapter) for adapter in draw_adapters(tmp_path)]
    for turn in range(40):
        adapters.clear(0)
        adapters.install(0, packed[turn % 4])
        assert generate(runtime, scheduler(runtime), [request], [0]).answers == right[turn % 4]
    runtime.close()


@pytest.mark.parametrize("cache_dtype", ["auto", "f8e4m3"])
def test_restored_blocks_equal_kept_blocks(base: Path, cache_dtype: str) -> None:
    runtime = start_gpu(base, lora=None, cpu_kv_cache_memory_mb=1, kv_cache_dtype=cache_dtype)

    def asked(first: int) -> list[Request]:
        prompt = tuple((first * 37 + 11 * place * place) % VOCAB for place in range(80))
        return [Request(prompt, 8, Sampling(temperature=0.0))]

    roomy = scheduler(runtime)
    generate(runtime, roomy, asked(0))
    stayed = generate(runtime, roomy, asked(0))
    tight = scheduler(runtime, num_blocks=7)
    for turn in range(12):
        back = generate(runtime, tight, asked(turn % 3))
        if turn and turn % 3 == 0:
            assert back.answers == stayed.answers
            assert back.cached_tokens == stayed.cached_tokens
    assert tight.gauges().host_cache_restores > 0
    runtime.close()
