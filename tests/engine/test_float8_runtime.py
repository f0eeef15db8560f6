"""A model in 8-bit floats runs on a CPU, which reports the memory it needs there, and on a
device."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from gpu_runtime_on_cpu import start_gpu_runtime_on_cpu
from safetensors.torch import load_file, save_file
from scheduled_requests import first_logprobs

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.kernels.weights import Float8
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.quant.weight_slices import size_bytes
from penstock.runtime import start_runtime
from penstock.runtime.protocol import Runtime
from tests.support.checkpoints import small_moe
from tests.support.checkpoints.float8_checkpoints import Form, write_float8
from tests.support.checkpoints.small_llama import (
    CONTEXT,
    FF,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    VOCAB,
    WIDTH,
    write_small_llama,
)
from tests.support.checkpoints.small_moe import write_small_experts

CODES = LAYERS * WIDTH * (HEAD_DIM * 2 * (HEADS + KV_HEADS) + 3 * FF)
SCALES = 4 * 7 * LAYERS  # no matrix exceeds one block
ENDS = 2 * 2 * VOCAB * WIDTH


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = write_small_llama(tmp_path_factory.mktemp("float8") / "plain")
    write_float8(plain, plain.parent / "small", "fp8-block", torch.bfloat16)
    return plain.parent / "small"


def settings(**options: object) -> EngineSettings:
    return EngineSettings(
        max_model_len=CONTEXT,
        max_num_seqs=6,
        max_num_batched_tokens=CONTEXT,
        kv_cache_memory_mb=1,
        **options,  # type: ignore[arg-type]
    )


def native(folder: Path) -> Runtime:
    """Uses exact attention, so that only the weights differ."""
    return start_runtime(
        files_at(folder, "m"), settings(kernel_backend="native", kv_cache_dtype="f32")
    )


def test_a_cpu_holds_bfloat16_counts_it_and_reports_it(folder: Path) -> None:
    runtime = native(folder)
    plain = 2 * CODES + ENDS
    assert plain <= runtime.info.weight_bytes <= 1.05 * plain  # as int16 with AVX2: 16.5 bits
    assert runtime.report.endswith("8-bit floats are held as bfloat16")
    runtime.close()


def test_an_unquantized_model_reports_nothing(folder: Path) -> None:
    runtime = native(folder.parent / "plain")
    assert "8-bit" not in runtime.report
    runtime.close()


def test_widened_bytes_are_known_before_weights_are_read(folder: Path) -> None:
    files = files_at(folder, "m")
    assert load_model(files, "auto").extra_bytes == CODES
    assert load_model(files, "f32").extra_bytes == 0
    assert load_model(files, "auto", float8="float8").extra_bytes == 0


def with_cache_scales(folder: Path, target: Path, scales: dict[str, torch.Tensor]) -> Path:
    """Copy a folder of one file and add `scales` to its tensors."""
    shutil.copytree(folder, target)
    (file,) = target.glob("*.safetensors")
    save_file({**load_file(file), **scales}, file)
    return target


def test_an_fp8_cache_uses_the_scales_of_the_folder(folder: Path, tmp_path: Path) -> None:
    """Scales so large that all keys round to 0 make attention uniform: they are in use."""
    layer = "model.layers.{}.self_attn"
    usual = {f"{layer.format(i)}.{part}_scale": torch.tensor(0.125) for i in range(LAYERS)
             for part in "kv"}  # fmt: skip
    per_head = {name: torch.full((KV_HEADS, 1, 1), 0.125) for name in usual}
    huge = {name: torch.tensor(1e9 if ".k_" in name else 0.125) for name in usual}
    options = settings(kv_cache_dtype="f8e4m3")
    found = {}
    for name, scales in (("none", {}), ("one", usual), ("per head", per_head), ("huge", huge)):
        path = with_cache_scales(folder, tmp_path / name, scales)
        runtime = start_gpu_runtime_on_cpu(path, options)
        caches = runtime._model.pools.present
        wanted = [1.0] * KV_HEADS if not scales else [0.125] * KV_HEADS
        assert caches[0].value_scales is not None
        assert caches[0].value_scales.tolist() == pytest.approx(wanted)
        found[name] = first_logprobs(runtime)
    assert found["one"] == found["per head"]
    assert found["one"] == pytest.approx(found["none"], abs=0.05)
    assert found["huge"] != pytest.approx(found["one"], abs=0.05)


def test_a_layer_with_the_wrong_number_of_cache_scales_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    scales = {"model.layers.0.self_attn.k_scale": torch.ones(KV_HEADS + 1)}
    path = with_cache_scales(folder, tmp_path / "wrong", scales)
    with pytest.raises(ModelError, match="layer 0 has 3 scales k_scale; it must have 1 or"):
        start_gpu_runtime_on_cpu(path, settings(kv_cache_dtype="f8e4m3"))


@pytest.mark.parametrize("form", ["fp8-block", "channel"])
def test_a_mixture_keeps_its_codes_on_a_device(tmp_path: Path, form: Form) -> None:
    plain = write_small_experts(tmp_path / "plain")
    write_float8(plain, tmp_path / "m", form, torch.bfloat16)
    model = load_model(files_at(tmp_path / "m", "m"), "auto", float8="float8")
    experts = model.weights.layer(0).experts
    assert experts is not None and isinstance(experts.gate[0], Float8)
    assert model.extra_bytes == 0
    device = start_gpu_runtime_on_cpu(tmp_path / "m", settings())
    assert "8-bit" not in device.report
    stored = sum(part.stat().st_size for part in (tmp_path / "m").glob("*.safetensors"))
    assert device.info.weight_bytes < stored
    assert first_logprobs(device) == pytest.approx(first_logprobs(native(tmp_path / "m")), abs=0.05)


def test_rounding_weights_needs_a_gpu(folder: Path) -> None:
    with pytest.raises(ModelError, match="quantization is fp8, which needs a GPU"):
        start_runtime(files_at(folder, "m"), settings(quantization="fp8", device="cpu"))


def test_float8_savings_count_only_the_floats_of_layers(folder: Path) -> None:
    rows = LAYERS * (HEAD_DIM * (HEADS + 2 * KV_HEADS) + 2 * WIDTH + 2 * FF)
    plain = load_model(files_at(folder.parent / "plain", "m"), "auto").weights
    assert plain.float8_savings(size_bytes) == CODES - 4 * rows
    rounded = load_model(files_at(folder, "m"), "auto", float8="float8").weights
    assert rounded.float8_savings(size_bytes) == 0


def test_float8_savings_count_experts_but_not_the_router(tmp_path: Path) -> None:
    sizes, files = small_moe, files_at(write_small_experts(tmp_path / "m"), "m")
    heads, kv = sizes.HEADS * sizes.HEAD_DIM, sizes.KV_HEADS * sizes.HEAD_DIM
    columns = 2 * (heads + kv) * sizes.LAYERS + 3 * sizes.FF
    rows = (heads + 2 * kv + sizes.WIDTH) * sizes.LAYERS + 2 * sizes.FF + sizes.WIDTH
    experts = sizes.EXPERTS * (sizes.LAYERS - 1)
    columns += 3 * sizes.EXPERT_FF * experts
    rows += (2 * sizes.EXPERT_FF + sizes.WIDTH) * experts
    weights = load_model(files, "auto").weights
    assert weights.float8_savings(size_bytes) == sizes.WIDTH * columns - 4 * rows


def test_a_device_keeps_the_codes_and_answers_alike(folder: Path) -> None:
    device = start_gpu_runtime_on_cpu(folder, settings())
    assert device.info.weight_bytes == CODES + ENDS + SCALES
    assert first_logprobs(device) == pytest.approx(first_logprobs(native(folder)), abs=0.05)
