"""The bytes that the GPU memory formula counts for rows and rope tables are what a start allocates,
on CPU tensors, which are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_runtime_on_cpu import FREE_BYTES
from packed_weight_sizes import PackingOps, held_bytes

import penstock.runtime.gpu.load as gpu_load
from bench.device.memory import LiveBytes
from penstock.base.errors import ModelError
from penstock.config import EngineSettings, LoraSettings
from penstock.kernels.reference import ReferenceOps
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import LayerSpec
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.runtime.gpu.load import build_runtime, plan_sizes
from penstock.runtime.gpu.memory import DeviceMemoryPlan, plan_device_memory
from tests.support.checkpoints.small_llama import write_small_llama

LONGEST = 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("base") / "m")


def opened(folder: Path, **changes: Any) -> LoadedModel:
    """Return the small model with a long context and other changes of its spec."""
    model = load_model(files_at(folder, "m"), "f32")
    return replace(model, spec=replace(model.spec, max_model_len=LONGEST, **changes))


def allocated(
    model: LoadedModel, settings: EngineSettings
) -> tuple[DeviceMemoryPlan, dict[str, int]]:
    """Return a plan and the bytes that each stage of a start with it allocates."""
    plan = plan_device_memory(model.spec, 1 << 20, settings, FREE_BYTES)
    grown: dict[str, int] = {}
    with LiveBytes() as live:

        def note(stage: str, _: DeviceMemoryPlan) -> None:
            grown[stage] = live.now - sum(grown.values())

        build_runtime(model, plan, settings, ReferenceOps(), observe=note).close()
    return plan, grown


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64},
        {"max_num_seqs": 300, "max_num_batched_tokens": 16, "max_model_len": 64},
        {"max_num_seqs": 4, "max_num_batched_tokens": 2048, "max_model_len": LONGEST},
        {
            "max_num_seqs": 12,
            "max_num_batched_tokens": 64,
            "lora": LoraSettings(max_adapters=3, max_rank=8),
        },
        {"max_num_seqs": 2, "max_num_batched_tokens": 64, "no_kv_cache": True},
    ],
)
def test_rows_are_counted(folder: Path, options: dict[str, Any]) -> None:
    settings = EngineSettings(kv_cache_memory_mb=16, dtype="f32", **options)
    plan, grown = allocated(opened(folder), settings)
    assert grown["rows"] == plan.terms()["rows"]


LOCAL = (LayerSpec(window=16), LayerSpec())


@pytest.mark.parametrize(
    "changes",
    [{}, {"layers": LOCAL, "local_rope": RopeSpec(1e6, 8)}, {"layers": (LayerSpec(rotary=False),)}],
)
def test_rope_tables_are_counted(folder: Path, changes: dict[str, Any]) -> None:
    layers = opened(folder).spec.layers
    if "layers" in changes:
        changes = {**changes, "layers": (*changes["layers"], *layers)[: len(layers)]}
    settings = EngineSettings(
        max_num_seqs=2, max_num_batched_tokens=64, kv_cache_memory_mb=16, dtype="f32"
    )
    model = opened(folder, **changes)
    weights = held_bytes(model.weights, ReferenceOps())
    plan, grown = allocated(model, settings)
    assert plan.max_model_len == LONGEST
    assert grown["weights"] - weights == plan.terms()["rope"]


def test_more_host_memory_than_available_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU KV cache and n-gram index together."""
    monkeypatch.setattr(gpu_load, "available_bytes", lambda: 3 << 20)
    settings = EngineSettings(
        max_num_seqs=4, max_num_batched_tokens=64, cpu_kv_cache_memory_mb=2, dtype="f32"
    )
    model = opened(folder)
    plan_sizes(model, settings, PackingOps(), FREE_BYTES)
    speculating = EngineSettings(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        cpu_kv_cache_memory_mb=2,
        dtype="f32",
        speculative_algorithm="ngram",
    )
    with pytest.raises(
        ModelError, match="n-gram index needs up to 2 MiB, but 3 MiB of host memory"
    ):
        plan_sizes(model, speculating, PackingOps(), FREE_BYTES)
