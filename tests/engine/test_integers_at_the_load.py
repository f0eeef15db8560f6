"""Float weights that are quantized to integers at load: answers, memory and errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from gpu_runtime_on_cpu import start_gpu_runtime_on_cpu
from lora_base_models import write_quantized
from safetensors.numpy import load_file, save_file
from scheduled_requests import first_logprobs

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.kernels.weights import Affine, Dense
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.quant.dequantize import dequantize
from penstock.quant.quantize import Bits, quantize_affine
from penstock.runtime import start_runtime
from penstock.runtime.protocol import Runtime
from tests.support.checkpoints.float8_checkpoints import write_float8
from tests.support.checkpoints.small_gpt_oss import write_small_gpt_oss
from tests.support.checkpoints.small_llama import CONTEXT, write_small_llama
from tests.support.checkpoints.small_moe import write_small_experts

Form = Literal["int8", "int4"]
BITS: dict[Form, Bits] = {"int8": 8, "int4": 4}


def settings(**options: Any) -> EngineSettings:
    return EngineSettings(
        max_model_len=CONTEXT,
        max_num_seqs=6,
        max_num_batched_tokens=CONTEXT,
        kv_cache_memory_mb=1,
        **options,
    )


def native(folder: Path, **options: Any) -> Runtime:
    """Uses exact attention, so that only the weights differ."""
    return start_runtime(
        files_at(folder, "m"), settings(kernel_backend="native", kv_cache_dtype="f32", **options)
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("floats") / "m")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_experts(tmp_path_factory.mktemp("floats") / "m")


def write_moved(folder: Path, target: Path, bits: Bits) -> Path:
    """Write the model whose float weights are the quantized weights of `folder`."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and not name.endswith("mlp.gate.weight"):
            own: Bits = bits if ".layers." in name else 8
            rounded = quantize_affine(Dense(tensor, "f16"), own)
            tensors[name] = dequantize(rounded)
        else:
            tensors[name] = tensor.astype("float32")
    save_file(tensors, target / "model.safetensors")
    return target


@pytest.mark.parametrize("form", BITS)
def test_answers_are_those_of_the_quantized_weights(
    llama: Path, form: Form, tmp_path: Path
) -> None:
    """Up to the rounding of activations in integer products."""
    moved = first_logprobs(native(write_moved(llama, tmp_path / "moved", BITS[form])))
    assert first_logprobs(native(llama, quantization=form)) == pytest.approx(moved, abs=0.05)
    device = start_gpu_runtime_on_cpu(llama, settings(quantization=form))
    assert first_logprobs(device) == pytest.approx(moved, abs=0.05)
    stored = first_logprobs(native(llama))
    assert form == "int8" or stored != pytest.approx(moved, abs=0.05), (
        "the test could not tell them apart"
    )


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model whose experts are stored in their own order."""
    return write_small_gpt_oss(tmp_path_factory.mktemp("floats") / "m", "floats")


@pytest.mark.parametrize("form", BITS)
@pytest.mark.parametrize("name", ["llama", "mixture", "gpt_oss"])
def test_kernels_answer_as_the_reference_does(
    name: str, form: Form, request: pytest.FixtureRequest
) -> None:
    files = files_at(request.getfixturevalue(name), "m")
    asked = settings(kernel_backend="reference", kv_cache_dtype="f32", quantization=form)
    reference = first_logprobs(start_runtime(files, asked))
    # avx512_bf16 rounds activations with one scale per two groups: 0.058 on Zen 4, 0 elsewhere
    assert first_logprobs(native(files.path, quantization=form)) == pytest.approx(
        reference, abs=0.08
    )


@pytest.mark.parametrize("form", BITS)
@pytest.mark.parametrize("name", ["llama", "mixture", "gpt_oss"])
def test_a_start_counts_and_reports_quantized_weights(
    name: str, form: Form, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(name)
    model = load_model(files_at(folder, "m"), "auto", form=form)
    planned = (folder / "model.safetensors").stat().st_size + model.extra_bytes
    runtime, plain = native(folder, quantization=form), native(folder)
    rest = 45_000  # the file's header, vectors and biases, and the padding of packed matrices
    assert abs(planned - runtime.info.weight_bytes) <= rest
    assert runtime.info.weight_bytes < 0.6 * plain.info.weight_bytes
    assert f"; float weights of layers are quantized to {form}" in (runtime.report)
    assert "rounded" not in plain.report
    for one in (runtime, plain):
        one.close()


def test_embedding_and_head_keep_8_bits_and_the_router_is_not_quantized(mixture: Path) -> None:
    weights = load_model(files_at(mixture, "m"), "auto", form="int4").weights
    head, table = weights.head(), weights.embedding()
    assert isinstance(table, Affine) and table.bits == 8
    assert head is not None and [part.bits for part in head.parts] == [8]  # type: ignore[union-attr]
    layer = next(iter(weights.layers()))
    assert layer.router is not None and isinstance(layer.router.parts[0], Dense)
    assert layer.experts is not None
    inner = (*layer.qkv.parts, *layer.output.parts, *layer.experts.gate, *layer.experts.down)
    assert all(isinstance(one, Affine) and one.bits == 4 for one in inner)


def test_8_bit_floats_become_integers_on_a_cpu(llama: Path, tmp_path: Path) -> None:
    write_float8(llama, tmp_path / "small", "fp8-block", torch.bfloat16)
    runtime = native(tmp_path / "small", quantization="int8")
    plain = native(tmp_path / "small")
    assert runtime.info.weight_bytes < plain.info.weight_bytes
    assert first_logprobs(runtime) == pytest.approx(first_logprobs(plain), abs=0.1)


def test_integers_of_a_file_are_not_quantized_again(tmp_path: Path) -> None:
    path, _ = write_quantized(tmp_path, "Q4_1")
    model = load_model(files_at(path, "m"), "auto", form="int8")
    layer = next(iter(model.weights.layers()))
    assert isinstance(layer.output.parts[0], Affine) and layer.output.parts[0].bits == 4


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"quantization": "fp8"}, "quantization is fp8, which needs a GPU"),
        (
            {"quantization": "int8", "dtype": "f32"},
            "quantization is int8; it needs dtype auto, not f32",
        ),
        (
            {"quantization": "int4", "dtype": "f32"},
            "quantization is int4; it needs dtype auto, not f32",
        ),
    ],
)
def test_impossible_settings_are_refused(llama: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        start_runtime(files_at(llama, "m"), settings(device="cpu", **options))


def test_a_number_that_is_not_finite_is_named(llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight: not all numbers are"):
        native(tmp_path / "m", quantization="int8")


def test_a_tied_head_is_rounded_once(llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    runtime = native(tmp_path / "m", quantization="int4")
    assert runtime.info.weight_bytes < native(llama, quantization="int4").info.weight_bytes
    assert load_model(files_at(tmp_path / "m", "m"), "auto", form="int4").weights.head() is None
    assert all(value < 0 for value in first_logprobs(runtime))
