"""The bytes that the GPU memory formula counts for weights are the bytes of the packed weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from packed_weight_sizes import PackingOps, held_bytes
from spec_gguf import spec_gguf

from penstock.config import EngineSettings
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.routing import Routing
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.models.loader.tensor_parallel import shard_model
from penstock.quant.gguf.ggml_types import TYPES
from penstock.runtime.gpu.load import plan_sizes, weight_bytes
from tests.support.checkpoints.float8_checkpoints import Form, write_float8
from tests.support.checkpoints.small_llama import write_small_llama
from tests.support.checkpoints.small_moe import expert_tensors, write_small_experts

pytest.importorskip("triton", reason="Triton has no build for this platform")

KINDS = sorted(TYPES.keys() - {"I32", "I64"})  # the bytes below are integers beyond 2^24
SETTINGS = EngineSettings(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64)

# Each of two ranks has whole groups of every format, and half a super-block of output's columns.
LLAMA = DecoderSpec(
    architecture="llama",
    hidden_size=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=512,
    vocab_size=50,
    norm_eps=1e-6,
    rope=RopeSpec(10_000.0, 64),
    layers=(LayerSpec(),) * 2,
    max_model_len=64,
    tied_head=True,
)
MIXTURE = replace(
    LLAMA,
    architecture="qwen3moe",
    qk_norm=True,
    tied_head=False,
    layers=(LayerSpec(experts=ExpertsSpec(3, Routing(2, renormalize=True), 512)),) * 2,
)
SPECS = {"llama": LLAMA, "mixture": MIXTURE}


def write_gguf(path: Path, spec: DecoderSpec, kind: str) -> Path:
    """Write a file of random blocks: matrices of type `kind`, norms and routers of F32."""
    random = np.random.default_rng(0)
    with spec_gguf(path, spec) as writer:
        for name, shape in expected_shapes(GGUF_NAMES, spec).items():
            plain = len(shape) == 1 or "ffn_gate_inp" in name
            wanted = gguf.GGMLQuantizationType["F32" if plain else kind]
            block, block_bytes = gguf.GGML_QUANT_SIZES[wanted]
            *rows, columns = shape
            # bytes that are finite numbers in every float type
            raw = random.integers(0, 0x3C, (*rows, columns // block * block_bytes), np.uint8)
            writer.add_tensor(name, raw, raw_dtype=wanted)
    return path


def opened(path: Path) -> LoadedModel:
    files = files_at(path, "m") if path.is_dir() else ModelFiles("m", "gguf", path)
    return load_model(files, "auto", float8="float8")


def assert_counted(model: LoadedModel) -> None:
    ops = PackingOps()
    counted = weight_bytes(model, SETTINGS, ops)
    assert counted == held_bytes(model.weights, ops)
    assert plan_sizes(model, SETTINGS, ops, 1 << 30).terms()["weights"] == counted


@pytest.mark.parametrize("form", SPECS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_file_of_each_type(tmp_path: Path, kind: str, form: str) -> None:
    assert_counted(opened(write_gguf(tmp_path / "m.gguf", SPECS[form], kind)))


@pytest.mark.parametrize("form", SPECS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_of_a_gguf_file_of_each_type(tmp_path: Path, kind: str, form: str) -> None:
    model = opened(write_gguf(tmp_path / "m.gguf", SPECS[form], kind))
    for rank in range(2):
        assert_counted(shard_model(model, rank, 2))


@pytest.mark.parametrize("kind", ["Q5_0", "Q4_K", "Q6_K"])
def test_blocks_that_kernels_do_not_read_are_larger_than_in_the_file(
    tmp_path: Path, kind: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", MIXTURE, kind)
    assert weight_bytes(opened(path), SETTINGS, PackingOps()) > 1.3 * path.stat().st_size


def test_widened_weights_count_with_their_packed_size(tmp_path: Path) -> None:
    """The size depends on the ops that pack: the reference holds all weights in 32 bits."""
    model = opened(write_gguf(tmp_path / "m.gguf", MIXTURE, "Q8_0"))
    numbers = sum(map(np.prod, expected_shapes(GGUF_NAMES, MIXTURE).values()))
    assert weight_bytes(model, SETTINGS, ReferenceOps()) == 4 * numbers


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_floats_of_a_folder_have_the_activations_dtype(tmp_path: Path, dtype: Any) -> None:
    tensors = {name: values.astype(dtype) for name, values in expert_tensors().items()}
    assert_counted(opened(write_small_experts(tmp_path / "m", tensors)))


@pytest.mark.parametrize("form", ["fp8-block", "fp8-tensor", "channel", "tensor", "group"])
def test_8_bit_floats_are_counted_with_their_scales(tmp_path: Path, form: Form) -> None:
    """For matrices of whole blocks."""
    plain = write_small_llama(tmp_path / "plain", width=256, head_dim=128, ff=512)
    write_float8(plain, tmp_path / "m", form, torch.bfloat16)
    assert_counted(opened(tmp_path / "m"))
