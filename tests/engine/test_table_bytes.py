"""What the memory formula of a GPU counts of rows and of the tables of positions is what a start
allocates for them, to the byte: rehearsed over CPU tensors, which are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from device_runtimes import FREE_BYTES
from packing import PackingOps, held_bytes
from small_llama import write_small_llama

from bench.device.memory import LiveBytes
from penstock.base.errors import ModelError
from penstock.config import EngineSettings, LoraSettings
from penstock.kernels.reference import ReferenceOps
from penstock.models.loading import LoadedModel, load_model
from penstock.models.sources import files_at
from penstock.models.spec import LayerSpec, RopeSpec
from penstock.runtime import gpu_load
from penstock.runtime.gpu_load import place, plan_sizes
from penstock.runtime.gpu_memory import DevicePlan, plan_device_memory

LONGEST = 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("base") / "m")


def opened(folder: Path, **changes: Any) -> LoadedModel:
    """The small model as one of long contexts, with what else of its spec is changed."""
    model = load_model(files_at(folder, "m"), "f32")
    return replace(model, spec=replace(model.spec, context_tokens=LONGEST, **changes))


def allocated(model: LoadedModel, settings: EngineSettings) -> tuple[DevicePlan, dict[str, int]]:
    """A plan, and by how much each stage of a start with it grows what is allocated."""
    plan = plan_device_memory(model.spec, 1 << 20, settings, FREE_BYTES)
    grown: dict[str, int] = {}
    with LiveBytes() as live:

        def note(stage: str, _: DevicePlan) -> None:
            grown[stage] = live.now - sum(grown.values())

        place(model, plan, settings, ReferenceOps(), observe=note).close()
    return plan, grown


@pytest.mark.parametrize(
    "options",
    [
        {"max_seqs": 8, "token_budget": 64, "context_tokens": 64},
        {"max_seqs": 300, "token_budget": 16, "context_tokens": 64},
        {"max_seqs": 4, "token_budget": 2048, "context_tokens": LONGEST},
        {"max_seqs": 12, "token_budget": 64, "lora": LoraSettings(max_adapters=3, max_rank=8)},
        {"max_seqs": 2, "token_budget": 64, "no_kv_cache": True},
    ],
)
def test_rows_are_counted(folder: Path, options: dict[str, Any]) -> None:
    settings = EngineSettings(cache_mb=16, dtype="f32", **options)
    plan, grown = allocated(opened(folder), settings)
    assert grown["rows"] == plan.terms()["rows"]


LOCAL = (LayerSpec(window=16), LayerSpec())


@pytest.mark.parametrize(
    "changes",
    [{}, {"layers": LOCAL, "local_rope": RopeSpec(1e6, 8)}, {"layers": (LayerSpec(rotary=False),)}],
)
def test_tables_that_rotate_are_counted(folder: Path, changes: dict[str, Any]) -> None:
    layers = opened(folder).spec.layers
    if "layers" in changes:
        changes = {**changes, "layers": (*changes["layers"], *layers)[: len(layers)]}
    settings = EngineSettings(max_seqs=2, token_budget=64, cache_mb=16, dtype="f32")
    model = opened(folder, **changes)
    weights = held_bytes(model.weights, ReferenceOps())
    plan, grown = allocated(model, settings)
    assert plan.context_tokens == LONGEST
    assert grown["weights"] - weights == plan.terms()["rope"]


def test_what_the_host_has_no_room_for_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of its parts together."""
    monkeypatch.setattr(gpu_load, "available_bytes", lambda: 3 << 20)
    settings = EngineSettings(max_seqs=4, token_budget=64, host_cache_mb=2, dtype="f32")
    model = opened(folder)
    plan_sizes(model, settings, PackingOps(), FREE_BYTES)
    guessing = EngineSettings(
        max_seqs=4, token_budget=64, host_cache_mb=2, dtype="f32", speculation=True
    )
    with pytest.raises(ModelError, match="guesses take up to 2 MiB; 3 MiB of the host"):
        plan_sizes(model, guessing, PackingOps(), FREE_BYTES)
