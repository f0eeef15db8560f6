"""The CPU memory formula: a plan fits, or is refused with the numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import _native
from penstock.base.errors import ModelError
from penstock.base.resources import available_bytes, available_cores
from penstock.config import EngineSettings, LoraSettings
from penstock.models.decoder.lora_targets import adapter_bytes
from penstock.models.decoder.mixers.latent_attention import LatentAttentionSpec
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.runtime.drafts.memory import DrafterMemory
from penstock.runtime.mebibytes import MIB
from penstock.runtime.memory import (
    HISTORY_BYTES,
    MemoryPlan,
    plan_memory,
    warn_of_short_context,
)
from penstock.scheduler import NGRAM_INDEX_BYTES

SPEC = DecoderSpec(
    architecture="llama",
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49152,
    norm_eps=1e-5,
    rope=RopeSpec(1e5, 64),
    layers=(LayerSpec(),) * 30,
    max_model_len=8192,
)
LATENT = LatentAttentionSpec(9, 0, 64, 32, 16, 32, 0.1)
BLOCK_BYTES = 16 * 30 * 2 * 3 * 64 * 2
WEIGHTS = 100 * MIB
# elements of a rank 1 adapter in one layer: A and B of q, k, v, o, gate, up, down
PER_RANK = (576 + 576) + 2 * (576 + 192) + (576 + 576) + 2 * (576 + 1536) + (1536 + 576)


def test_the_default_cache_holds_every_sequence_at_1024_tokens_or_one_whole_context() -> None:
    plan = plan_memory(SPEC, WEIGHTS, EngineSettings(), None)
    assert plan.cache.blocks == 32 * 1024 // 16
    assert plan.cache.size_bytes == plan.cache.blocks * BLOCK_BYTES
    assert plan.max_model_len == 8192
    few = plan_memory(SPEC, WEIGHTS, EngineSettings(max_num_seqs=2), None)
    assert few.cache.blocks == 8192 // 16


def test_a_cache_size_is_kept_and_clamps_the_context() -> None:
    plan = plan_memory(SPEC, WEIGHTS, EngineSettings(kv_cache_memory_mb=10), None)
    assert plan.cache.blocks == 10 * MIB // BLOCK_BYTES
    assert plan.max_model_len == plan.cache.blocks * 16


@pytest.mark.parametrize(
    ("settings", "available", "warned"),
    [
        (
            EngineSettings(kv_cache_memory_mb=1),
            None,
            "is 32 tokens, .* 1 MiB .* 8,192 tokens .* 180$",
        ),
        (
            EngineSettings(max_num_seqs=2),
            300 * MIB,
            "8,192 tokens need a kv_cache_memory_mb of 180$",
        ),
        (EngineSettings(kv_cache_memory_mb=180), None, None),
        (EngineSettings(max_model_len=1024), None, None),
        (EngineSettings(max_model_len=100_000), None, None),
    ],
)
def test_a_context_limited_by_the_cache_is_logged_with_the_size_it_needs(
    caplog: pytest.LogCaptureFixture,
    settings: EngineSettings,
    available: int | None,
    warned: str | None,
) -> None:
    warn_of_short_context(SPEC, settings, plan_memory(SPEC, WEIGHTS, settings, available))
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == (warned is not None)
    assert warned is None or re.search(warned, logged[0])


def test_a_cache_too_small_for_the_context_is_refused_with_the_size_it_needs() -> None:
    with pytest.raises(
        ModelError, match=r"kv_cache_memory_mb is 10, .* 448 tokens.*8192.*need 180 MiB"
    ):
        plan_memory(SPEC, WEIGHTS, EngineSettings(kv_cache_memory_mb=10, max_model_len=8192), None)
    plan = plan_memory(
        SPEC, WEIGHTS, EngineSettings(kv_cache_memory_mb=180, max_model_len=8192), None
    )
    assert plan.max_model_len == 8192


def test_a_context_beyond_the_models_own_is_clamped_to_it() -> None:
    plan = plan_memory(SPEC, WEIGHTS, EngineSettings(max_model_len=100_000), None)
    assert plan.max_model_len == 8192


def test_a_default_cache_shrinks_to_the_available_memory() -> None:
    plan = plan_memory(SPEC, WEIGHTS, EngineSettings(), 500 * MIB)
    assert plan.total_bytes <= 500 * MIB
    assert plan.total_bytes + BLOCK_BYTES + 64 * 1024 > 500 * MIB, "and no further"


@pytest.mark.parametrize("asked", [{"kv_cache_memory_mb": 600}, {"max_model_len": 8192}])
def test_configured_sizes_that_do_not_fit_are_refused_with_the_numbers(
    asked: dict[str, int],
) -> None:
    settings = msgspec.structs.replace(EngineSettings(), **asked)
    with pytest.raises(ModelError, match=r"100 weights \+ .* cache \(.*\) .* 400 MiB are"):
        plan_memory(SPEC, WEIGHTS, settings, 400 * MIB)


def test_penalties_and_dry_are_counted_for_full_length_rows() -> None:
    plan = plan_memory(SPEC, WEIGHTS, EngineSettings(max_num_seqs=4), None)
    assert plan.history_bytes == 4 * 8192 * HISTORY_BYTES
    assert _native.DryRepetitions.bytes_per_token + 64 <= HISTORY_BYTES
    assert f"{plan.history_bytes // MIB} penalties and DRY" in plan.formula()


def test_speculation_adds_a_term_for_its_index() -> None:
    plain = plan_memory(SPEC, WEIGHTS, EngineSettings(max_num_seqs=4), None)
    plan = plan_memory(
        SPEC, WEIGHTS, EngineSettings(max_num_seqs=4, speculative_algorithm="ngram"), None
    )
    assert plan.total_bytes == plain.total_bytes + 4 * 8192 * NGRAM_INDEX_BYTES
    assert f" {-(-4 * 8192 * NGRAM_INDEX_BYTES // MIB)} n-gram index + " in plan.formula()
    forgetful = EngineSettings(max_num_seqs=4, speculative_algorithm="ngram", no_kv_cache=True)
    assert "n-gram" not in plan_memory(SPEC, WEIGHTS, forgetful, None).formula()


def test_a_drafter_adds_its_terms_and_its_cache_shrinks_with_the_targets() -> None:
    settings = EngineSettings(max_num_seqs=4)
    plain = plan_memory(SPEC, WEIGHTS, settings, None)

    def drafter(plan: MemoryPlan) -> DrafterMemory:
        return DrafterMemory(50 * MIB, plan.cache, 3 * MIB)

    plan = plan_memory(SPEC, WEIGHTS, settings, None, drafter=drafter)
    assert plan.total_bytes == plain.total_bytes + plain.cache.size_bytes + 53 * MIB
    cache = -(-plan.cache.size_bytes // MIB)
    terms = f" 50 weights of drafter + {cache:,} cache of drafter + 3 buffers of drafter + "
    assert terms in plan.formula()
    available = plan.total_bytes - 20 * MIB
    less = plan_memory(SPEC, WEIGHTS, settings, available, drafter=drafter)
    assert less.total_bytes <= available
    assert less.drafter.cache == less.cache and less.cache.blocks < plan.cache.blocks


def test_without_a_cache_a_step_holds_a_whole_context() -> None:
    plan = plan_memory(SPEC, WEIGHTS, EngineSettings(no_kv_cache=True), None)
    assert plan.step_tokens == 8192


def test_the_cache_is_f32_for_dtype_f32_unless_configured() -> None:
    def item_bytes(**options: str) -> int:
        settings = msgspec.structs.replace(EngineSettings(), **options)
        return plan_memory(SPEC, WEIGHTS, settings, None).cache.item_bytes

    assert item_bytes() == 2
    assert item_bytes(dtype="f32") == 4
    assert item_bytes(dtype="f32", kv_cache_dtype="f16") == 2
    assert item_bytes(kv_cache_dtype="f32") == 4


def test_an_int8_cache_has_a_scale_for_each_key_and_value_of_a_head() -> None:
    halves = plan_memory(SPEC, WEIGHTS, EngineSettings(), None).cache
    cache = plan_memory(SPEC, WEIGHTS, EngineSettings(kv_cache_dtype="int8"), None).cache
    assert cache.blocks == halves.blocks
    assert cache.size_bytes * 2 * 64 == halves.size_bytes * (64 + 4)
    assert cache.describe().endswith("30 layers x 2 x 3 heads x (64 + 4 of scales) x 1 bytes")


def test_cache_types_of_a_gpu_and_int8_latents_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"f8e4m3 needs a GPU.*int8"):
        plan_memory(SPEC, WEIGHTS, EngineSettings(kv_cache_dtype="f8e4m3"), None)
    latent = replace(SPEC, layers=tuple(replace(one, mixer=LATENT) for one in SPEC.layers))
    plan_memory(latent, WEIGHTS, EngineSettings(), None)
    with pytest.raises(ModelError, match="kv_cache_dtype is int8; for a model with latent"):
        plan_memory(latent, WEIGHTS, EngineSettings(kv_cache_dtype="int8"), None)


def test_the_printed_terms_add_up() -> None:
    plan = plan_memory(SPEC, WEIGHTS, EngineSettings(), None)
    terms, total = plan.formula().removesuffix(" MiB").split(" = ")
    numbers = [int(term.split()[0].replace(",", "")) for term in terms.split(" + ")]
    assert abs(sum(numbers) - int(total.replace(",", ""))) <= len(numbers)
    assert "2048 blocks x 16 tokens x 30 layers x 2 x 3 heads x 64 x 2 bytes" in terms


@given(
    available_mb=st.integers(100, 2000),
    max_num_seqs=st.integers(1, 64),
    block_size=st.integers(1, 64),
    kv_cache_memory_mb=st.none() | st.integers(1, 1000),
    max_model_len=st.none() | st.integers(16, 10_000),
)
def test_a_plan_fits_the_available_memory_or_is_refused(
    available_mb: int,
    max_num_seqs: int,
    block_size: int,
    kv_cache_memory_mb: int | None,
    max_model_len: int | None,
) -> None:
    settings = EngineSettings(
        max_num_seqs=max_num_seqs,
        block_size=block_size,
        kv_cache_memory_mb=kv_cache_memory_mb,
        max_model_len=max_model_len,
    )
    try:
        plan = plan_memory(SPEC, WEIGHTS, settings, available_mb * MIB)
    except ModelError:
        return
    assert plan.total_bytes <= available_mb * MIB
    assert 1 <= plan.max_model_len <= plan.cache.blocks * block_size
    if max_model_len is not None:
        assert plan.max_model_len == min(max_model_len, 8192)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    write(tmp_path / "proc" / "meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    return tmp_path


def available(host: Path) -> int | None:
    return available_bytes(host / "proc", host / "cgroup")


def test_without_a_limit_the_machines_available_memory_counts(host: Path) -> None:
    write(host / "proc" / "self" / "cgroup", "0::/app\n")
    write(host / "cgroup" / "app" / "memory.max", "max\n")
    write(host / "cgroup" / "app" / "memory.current", "123\n")
    assert available(host) == 8000 * 1024


def test_the_tightest_cgroup_above_the_process_counts(host: Path) -> None:
    write(host / "proc" / "self" / "cgroup", "0::/outer/inner\n")
    for group, limit, use in (("outer", 900_000, 300_000), ("outer/inner", 800_000, 100_000)):
        write(host / "cgroup" / group / "memory.max", f"{limit}\n")
        write(host / "cgroup" / group / "memory.current", f"{use}\n")
    write(host / "cgroup" / "outer" / "memory.stat", "anon 5\ninactive_file 50000\n")
    assert available(host) == 650_000


def test_cgroup_v1_counts_too(host: Path) -> None:
    write(host / "proc" / "self" / "cgroup", "4:cpu:/x\n3:memory:/docker\n")
    write(host / "cgroup" / "memory" / "docker" / "memory.limit_in_bytes", "5000\n")
    write(host / "cgroup" / "memory" / "docker" / "memory.usage_in_bytes", "6000\n")
    assert available(host) == 0


def test_without_cgroup_files_there_is_no_limit(tmp_path: Path) -> None:
    assert available(tmp_path) is None


def test_a_time_quota_limits_the_cores(host: Path) -> None:
    write(host / "proc" / "self" / "cgroup", "0::/app/part\n")
    write(host / "cgroup" / "app" / "cpu.max", "150000 100000\n")
    write(host / "cgroup" / "app" / "part" / "cpu.max", "max 100000\n")
    assert available_cores(host / "proc", host / "cgroup") == 1


def test_adapters_have_a_term_for_the_configured_number() -> None:
    few = EngineSettings(lora=LoraSettings(max_adapters=3, max_rank=16))
    plain = plan_memory(SPEC, WEIGHTS, EngineSettings(), None)
    plan = plan_memory(SPEC, WEIGHTS, few, None)
    assert plan.adapter_bytes == 3 * adapter_bytes(SPEC, 16, 2) == 3 * 16 * 2 * 30 * PER_RANK
    inner = 4 * plan.step_tokens * 3 * 16
    assert plan.buffer_bytes == plain.buffer_bytes + inner
    assert plan.total_bytes == plain.total_bytes + plan.adapter_bytes + inner
    assert f" {-(-plan.adapter_bytes // MIB)} adapters + " in plan.formula()
    assert "adapters" not in plain.formula()


def test_adapters_are_limited_to_their_setting_and_a_quarter_of_memory() -> None:
    settings = EngineSettings(lora=LoraSettings(max_bytes=70 * MIB))
    assert plan_memory(SPEC, WEIGHTS, settings, None).adapter_bytes == 70 * MIB
    many = EngineSettings(lora=LoraSettings())
    plan = plan_memory(SPEC, WEIGHTS, many, 800 * MIB)
    assert plan.adapter_bytes == 200 * MIB
    assert plan.total_bytes <= 800 * MIB
