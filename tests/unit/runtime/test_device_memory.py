"""The memory formula of a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.device.model_shapes import SHAPES
from penstock.base.errors import ModelError
from penstock.config import EngineSettings, LoraSettings
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import files_at
from penstock.models.loader.tensor_parallel import shard_spec
from penstock.runtime.gpu.memory import DeviceMemoryPlan, plan_device_memory
from penstock.runtime.weight_bytes import weight_bytes
from penstock.scheduler import MAX_DRAFT_TOKENS, NGRAM_INDEX_BYTES
from tests.support.checkpoints.sparse_checkpoints import (
    parameters,
    write_config,
    write_sparse_checkpoint,
)

GIB = 1 << 30
LLAMA_8B = DecoderSpec(
    architecture="llama",
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
    norm_eps=1e-5,
    rope=RopeSpec(500000.0, 128),
    layers=(LayerSpec(),) * 32,
    max_model_len=131072,
)
WEIGHTS = 16_060_000_000
SETTINGS = EngineSettings(max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=4096)


def plan(settings: EngineSettings = SETTINGS, free_bytes: int = 140 * GIB) -> DeviceMemoryPlan:
    return plan_device_memory(LLAMA_8B, WEIGHTS, settings, free_bytes)


def test_the_cache_gets_all_remaining_memory() -> None:
    found = plan()
    assert 0.999 * 0.92 * 140 * GIB < found.total_bytes <= 0.92 * 140 * GIB
    tokens = found.cache.blocks * found.cache.block_size
    assert tokens == pytest.approx(920_000, rel=0.02)  # the tokens that an H200 should hold


def test_an_fp8_cache_holds_twice_the_tokens() -> None:
    narrow = plan(msgspec.structs.replace(SETTINGS, kv_cache_dtype="f8e4m3"))
    assert narrow.cache.blocks == pytest.approx(2 * plan().cache.blocks, abs=2)


def test_a_configured_cache_size_is_kept() -> None:
    found = plan(msgspec.structs.replace(SETTINGS, kv_cache_memory_mb=8192))
    assert found.cache.size_bytes == 8192 << 20


@pytest.mark.parametrize(
    ("changes", "free_gib"),
    [({}, 16), ({"kv_cache_memory_mb": 8192}, 24), ({"kv_cache_memory_mb": 64}, 140)],
)
def test_a_model_that_does_not_fit_is_refused_with_the_numbers(
    changes: dict[str, object], free_gib: int
) -> None:
    settings = msgspec.structs.replace(SETTINGS, **changes)
    with pytest.raises(
        ModelError, match=r"15,317 weights .* MiB of the device, but only [\d,]+ MiB"
    ):
        plan(settings, free_gib * GIB)


OPEN = EngineSettings(max_model_len=4096)


@pytest.mark.parametrize(
    ("free_gib", "sizes"),
    [(140, (256, 8192)), (79, (256, 8192)), (24, (128, 4096)), (20, (32, 512))],
)
def test_default_step_sizes_are_the_largest_that_leave_room_for_the_cache(
    free_gib: int, sizes: tuple[int, int]
) -> None:
    found = plan(OPEN, free_gib * GIB)
    assert found.sizes == sizes
    assert found.step_tokens == sizes[1]
    assert found == plan(
        msgspec.structs.replace(OPEN, max_num_seqs=sizes[0], max_num_batched_tokens=sizes[1]),
        free_gib * GIB,
    )


def test_a_configured_step_size_does_not_shrink() -> None:
    assert plan(msgspec.structs.replace(OPEN, max_num_seqs=200), 22 * GIB).sizes == (200, 512)
    assert (
        plan(msgspec.structs.replace(OPEN, max_num_batched_tokens=8192), 22 * GIB).sizes[1] == 8192
    )


def test_a_model_that_fits_no_step_size_is_refused_with_the_numbers() -> None:
    with pytest.raises(ModelError, match=r"15,317 weights .* rows \(32 sequences\)"):
        plan(OPEN, 16 * GIB)


def test_adapters_get_memory_before_the_cache() -> None:
    lora = LoraSettings(max_adapters=16, max_rank=64, max_bytes=3 * GIB)
    found = plan(msgspec.structs.replace(SETTINGS, lora=lora))
    assert found.adapter_bytes == 3 * GIB
    # 32 slots x 7 projections x 32 layers: two addresses, a rank, 64 scales
    assert found.slot_bytes == 32 * 7 * 32 * (16 + 4 + 64 * 4)
    assert found.total_bytes <= 0.92 * 140 * GIB
    fewer = plan().cache.blocks - found.cache.blocks
    taken = 3 * GIB + found.slot_bytes + found.graph_bytes - plan().graph_bytes
    assert fewer * 16 * 131072 == pytest.approx(taken, rel=0.02)
    assert "3,072 adapters + " in found.formula()
    small = LoraSettings(max_adapters=1, max_rank=8)
    # 8 times the inputs and outputs of all projections, in 16 bits
    columns = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    least = plan(msgspec.structs.replace(SETTINGS, lora=small))
    assert least.adapter_bytes == 8 * 2 * 32 * columns


def test_a_context_is_clamped_to_the_cache() -> None:
    long = msgspec.structs.replace(SETTINGS, max_model_len=None, max_num_seqs=8)
    found = plan(long, 26 * GIB)
    assert found.max_model_len == (found.cache.blocks - 1) * 16 < 131072


def test_every_term_uses_the_clamped_context() -> None:
    long = msgspec.structs.replace(SETTINGS, max_model_len=None, max_num_seqs=8)
    clamped = plan(long, 26 * GIB)
    asked = msgspec.structs.replace(long, max_model_len=clamped.max_model_len)
    assert replace(plan(asked, 26 * GIB), cache=clamped.cache) == clamped


def test_the_ngram_index_uses_host_memory() -> None:
    found = plan(msgspec.structs.replace(SETTINGS, speculative_algorithm="ngram"))
    assert found.ngram_index_bytes == 256 * 4096 * NGRAM_INDEX_BYTES
    assert found.formula().endswith("of the device, and 144 MiB of host memory (n-gram index)")
    assert found.total_bytes == plan().total_bytes
    assert "n-gram" not in plan().formula()
    # with tensor parallelism only rank 0 has an index
    both = msgspec.structs.replace(SETTINGS, speculative_algorithm="ngram", tensor_parallel_size=2)
    assert plan(both).ngram_index_bytes == found.ngram_index_bytes


def test_the_numbers_of_a_tensor_parallel_model_are_per_device() -> None:
    """Half the heads, so a cache of the same size holds twice the tokens. Logits are gathered."""
    half = shard_spec(LLAMA_8B, 2, "m")
    settings = msgspec.structs.replace(SETTINGS, tensor_parallel_size=2)
    found = plan_device_memory(half, WEIGHTS // 2, settings, 140 * GIB)
    alone = plan_device_memory(half, WEIGHTS // 2, SETTINGS, 140 * GIB)
    assert {size.kv_heads for size in found.cache.layers if size} == {4}
    assert found.cache.blocks > 2 * plan().cache.blocks
    assert "MiB on each of 2 devices" in found.formula()
    gathered = 3 * (LLAMA_8B.vocab_size // 2) * 2  # the parts of both ranks and the own one
    assert found.work_bytes - alone.work_bytes == gathered * (256 + MAX_DRAFT_TOKENS)
    assert found.graph_bytes - alone.graph_bytes == gathered * 256


def test_the_cpu_kv_cache_is_divided_among_the_devices() -> None:
    settings = msgspec.structs.replace(SETTINGS, cpu_kv_cache_memory_mb=8192)
    whole = plan(settings)
    both = msgspec.structs.replace(settings, tensor_parallel_size=2)
    found = plan_device_memory(shard_spec(LLAMA_8B, 2, "m"), WEIGHTS // 2, both, 140 * GIB)
    assert found.cpu_blocks == whole.cpu_blocks
    assert 2 * found.cpu_cache_bytes == whole.cpu_cache_bytes
    for one in (whole, found):
        assert f"and 8,192 MiB of host memory ({whole.cpu_blocks} blocks)" in one.formula()


@pytest.mark.parametrize("lora", [None, LoraSettings()])
def test_the_formula_adds_up(lora: LoraSettings | None) -> None:
    terms = plan(msgspec.structs.replace(SETTINGS, lora=lora)).formula().split(" = ")
    numbers = [int(part.split()[0].replace(",", "")) for part in terms[0].split(" + ")]
    total = int(terms[1].split()[0].replace(",", ""))
    assert total <= sum(numbers) <= total + len(numbers)


# Parameters in the models' files, and bytes of KV cache per token.
@pytest.mark.parametrize(
    ("name", "count", "token_bytes"),
    [
        ("llama-8b", 8_030_261_248, 131_072),
        ("qwen3-8b", 8_190_735_360, 147_456),
        ("qwen3-0.6b", 596_049_920, 114_688),
        ("qwen3-30b-a3b", 30_532_122_624, 98_304),
    ],
)
def test_weight_and_cache_sizes_match_the_models(
    tmp_path: Path, name: str, count: int, token_bytes: int
) -> None:
    shape = SHAPES[name]
    spec = write_config(shape, tmp_path / name)
    assert parameters(spec) == count
    assert shape.token_bytes == token_bytes
    # the device benchmark's floors count all weights except norms
    counted = shape.layers * shape.layer_weights(float("inf")) + shape.head_weights
    assert count == pytest.approx(counted + (not shape.tied) * shape.head_weights, rel=3e-4)
    found = plan_device_memory(spec, 2 * count, SETTINGS, 140 * GIB)
    assert found.terms()["weights"] == 2 * count
    assert found.cache.size_bytes == found.cache.blocks * 16 * token_bytes
    narrow = msgspec.structs.replace(SETTINGS, kv_cache_dtype="f8e4m3")
    found = plan_device_memory(spec, 2 * count, narrow, 140 * GIB)
    assert found.block_bytes == 16 * token_bytes // 2


def test_a_checkpoint_has_the_size_of_its_parameters_and_a_header(tmp_path: Path) -> None:
    folder = write_sparse_checkpoint(SHAPES["llama-8b"], tmp_path / "llama")
    spec = write_config(SHAPES["llama-8b"], tmp_path / "spec")
    taken = weight_bytes(files_at(folder, "llama"), spec, SETTINGS)
    assert 0 < taken - 2 * 8_030_261_248 < 1 << 20
    wide = msgspec.structs.replace(SETTINGS, dtype="f32")
    assert weight_bytes(files_at(folder, "llama"), spec, wide) == 4 * 8_030_261_248


def test_weight_files_missing_from_the_index_are_not_counted(tmp_path: Path) -> None:
    """Some authors add all weights again as one file in another format."""
    folder = write_sparse_checkpoint(SHAPES["llama-8b"], tmp_path / "llama")
    spec = write_config(SHAPES["llama-8b"], tmp_path / "spec")
    taken = weight_bytes(files_at(folder, "llama"), spec, SETTINGS)
    (folder / "consolidated.safetensors").write_bytes(b"0" * 1000)
    assert weight_bytes(files_at(folder, "llama"), spec, SETTINGS) == taken


def test_the_files_of_a_split_gguf_are_counted_together(tmp_path: Path) -> None:
    spec = write_config(SHAPES["llama-8b"], tmp_path / "spec")
    for number, size in ((1, 300), (2, 50), (3, 7)):
        (tmp_path / f"m-0000{number}-of-00003.gguf").write_bytes(b"0" * size)
    files = ModelFiles("m", "gguf", tmp_path / "m-00001-of-00003.gguf")
    assert weight_bytes(files, spec, SETTINGS) == 357
