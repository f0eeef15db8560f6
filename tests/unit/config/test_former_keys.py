"""Former names of engine settings still work, in the file, as options and as arguments of LLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config import EngineSettings, SettingsError
from penstock.config.load_settings import FORMER_KEYS, load_engine

FORMER = """
[engine]
block_tokens = 32
cache_dtype = "f16"
cache_mb = 64
context_tokens = 512
cpu_level = "avx2"
host_cache_mb = 8
kernels = "native"
max_seqs = 4
prefix_cache_n = 0
quantize = "int8"
speculation = true
tensor_parallel = 2
token_budget = 256
tool_syntax = "hermes"
without_kernels = "packaged"
"""
CURRENT = EngineSettings(
    block_size=32,
    kv_cache_dtype="f16",
    kv_cache_memory_mb=64,
    max_model_len=512,
    cpu_isa="avx2",
    cpu_kv_cache_memory_mb=8,
    kernel_backend="native",
    max_num_seqs=4,
    enable_prefix_caching=False,
    quantization="int8",
    speculative_algorithm="ngram",
    tensor_parallel_size=2,
    max_num_batched_tokens=256,
    tool_call_parser="hermes",
    disabled_kernels="packaged",
)


def test_a_file_with_every_former_key_sets_the_current_fields(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(FORMER)
    assert load_engine({}, file=file) == CURRENT
    assert all(f"{key} = " in FORMER for key in FORMER_KEYS)
    assert set(FORMER_KEYS.values()) <= set(EngineSettings.__struct_fields__)


def test_an_option_overrides_the_former_key_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[engine]\nmax_seqs = 4\n")
    assert load_engine({"max_num_seqs": 8}, file=file).max_num_seqs == 8


def test_a_key_under_both_names_is_refused() -> None:
    with pytest.raises(SettingsError, match="max_seqs is the former name of max_num_seqs"):
        load_engine({"max_seqs": 4, "max_num_seqs": 8}, file=None)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"kv_cache_memory_mb": "8GiB"}, "kv_cache_memory_mb", 8192),
        ({"kv_cache_memory_mb": "512"}, "kv_cache_memory_mb", 512),
        ({"cache_mb": "512"}, "kv_cache_memory_mb", 512),
        ({"cpu_kv_cache_memory_mb": "1GB"}, "cpu_kv_cache_memory_mb", 953),
        ({"dtype": "float32"}, "dtype", "f32"),
        ({"kv_cache_dtype": "float16"}, "kv_cache_dtype", "f16"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype", "f8e4m3"),
        ({"prefix_cache_n": 16}, "enable_prefix_caching", True),
        ({"speculation": False}, "speculative_algorithm", "none"),
    ],
)
def test_spellings_of_vllm_and_former_values_are_read(
    given: dict[str, Any], field: str, value: object
) -> None:
    assert getattr(load_engine(given, file=None), field) == value


@pytest.mark.parametrize("given", [{"prefix_cache_n": "many"}, {"kv_cache_memory_mb": "much"}])
def test_a_value_of_the_wrong_form_is_refused_by_name(given: dict[str, Any]) -> None:
    (key,) = given
    with pytest.raises(SettingsError, match=f"^{key} must be"):
        load_engine(given, file=None)
