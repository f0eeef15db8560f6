"""A PEFT folder becomes an Adapter, or is refused with the key or tensor at fault."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.peft_folder import read_adapter
from penstock.config import LoraSettings
from tests.support.checkpoints.lora_adapters import ALL, SMALL, draw_tensors, sizes, write_adapter

LIMITS = LoraSettings()
Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


def read(folder: Path, limits: LoraSettings = LIMITS):
    return read_adapter(folder, SMALL, limits)


def refusal(folder: Path, limits: LoraSettings = LIMITS) -> AdapterRefused:
    with pytest.raises(AdapterRefused) as refused:
        read(folder, limits)
    assert str(folder) not in refused.value.message
    return refused.value


def factor(tensors: dict[str, np.ndarray], layer: int, name: str, side: str) -> np.ndarray:
    (found,) = (v for k, v in tensors.items() if f"s.{layer}." in k and f"{name}.lora_{side}" in k)
    return found


def test_all_factors_are_read_with_the_scale_in_b(tmp_path):
    tensors = draw_tensors(rank=4)
    adapter = read(write_adapter(tmp_path / "g1", tensors, config={"lora_alpha": 6}))
    assert (adapter.revision, adapter.rank, len(adapter.layers)) == ("g1", 4, 2)
    assert adapter.size_bytes == sum(tensor.nbytes for tensor in tensors.values())
    for layer, pairs in enumerate(adapter.layers):
        assert set(pairs) == {"q", "k", "v", "o", "gate", "up", "down"}
        for leaf in ALL:
            pair = pairs[leaf.removesuffix("_proj")]
            assert pair.a.flags.c_contiguous and pair.b.flags.c_contiguous
            np.testing.assert_array_equal(pair.a, factor(tensors, layer, leaf, "A"))
            np.testing.assert_array_equal(pair.b, factor(tensors, layer, leaf, "B") * 1.5)


def test_rank_stabilized_scale(tmp_path):
    tensors = draw_tensors(rank=4)
    config = {"lora_alpha": 6, "use_rslora": True}
    adapter = read(write_adapter(tmp_path / "a", tensors, config=config))
    expected = factor(tensors, 1, "up_proj", "B") * np.float32(3.0)
    np.testing.assert_array_equal(adapter.layers[1]["up"].b, expected)


def test_patterns_give_a_module_its_own_rank_and_alpha(tmp_path):
    tensors = draw_tensors(rank=4, ranks={"q_proj": 8})
    config = {
        "lora_alpha": 4,
        "rank_pattern": {"q_proj": 8},
        "alpha_pattern": {
            "model.layers.1.self_attn.q_proj": 24,
            "layers.0.mlp.up_proj": 12,
            r".*\.1\.mlp\.d\w+": 2,
            "proj": 1000,  # no module name ends with it after a dot
        },
    }
    adapter = read(write_adapter(tmp_path / "a", tensors, config=config))
    assert adapter.rank == 8
    scales = {(0, "q"): 0.5, (1, "q"): 3, (0, "up"): 3, (1, "up"): 1, (1, "down"): 0.5}
    for (layer, name), scale in scales.items():
        b = factor(tensors, layer, f"{name}_proj", "B")
        np.testing.assert_array_equal(adapter.layers[layer][name].b, b * np.float32(scale))


def test_some_layers_and_some_modules(tmp_path):
    drawn = {"targets": ("q_proj", "down_proj"), "layers": [1]}
    adapter = read(write_adapter(tmp_path / "a", config={"layers_to_transform": [1]}, **drawn))
    assert [set(pairs) for pairs in adapter.layers] == [set(), {"q", "down"}]


@pytest.mark.parametrize("targets", ["all-linear", r".*\.layers\.\d+\..*(q|down)_proj"])
def test_targets_may_be_an_expression(tmp_path, targets):
    drawn = {"targets": ("q_proj", "down_proj")}
    adapter = read(write_adapter(tmp_path / "a", config={"target_modules": targets}, **drawn))
    assert set(adapter.layers[0]) == {"q", "down"}


def test_excluded_modules_of_the_other_layers_are_read(tmp_path):
    tensors = draw_tensors(layers=[1]) | draw_tensors(layers=[0], targets=ALL[1:])
    config = {"exclude_modules": ["layers.0.self_attn.q_proj"]}
    adapter = read(write_adapter(tmp_path / "a", tensors, config=config))
    assert "q" in adapter.layers[1] and "q" not in adapter.layers[0]


def test_fused_modules_are_split_into_their_projections(tmp_path):
    tensors = draw_tensors(targets=("qkv_proj", "gate_up_proj"), rank=4)
    config = {"target_modules": ["qkv_proj", "gate_up_proj"], "lora_alpha": 4}
    pairs = read(write_adapter(tmp_path / "a", tensors, config=config)).layers[1]
    assert set(pairs) == {"q", "k", "v", "gate", "up"}
    qkv, gate_up = (factor(tensors, 1, name, "B") for name in ("qkv_proj", "gate_up_proj"))
    np.testing.assert_array_equal(np.concatenate([pairs[p].b for p in "qkv"]), qkv)
    np.testing.assert_array_equal(np.concatenate([pairs["gate"].b, pairs["up"].b]), gate_up)
    assert [len(pairs[p].b) for p in "qkv"] == [sizes(f"{p}_proj")[0] for p in "qkv"]
    for projection in "qkv":
        np.testing.assert_array_equal(pairs[projection].a, factor(tensors, 1, "qkv_proj", "A"))


@pytest.mark.parametrize(
    "prefix", ["", "model.", "base_model.model.", "base_model.model.language_model.model."]
)
def test_prefixes_of_the_trained_model_do_not_matter(tmp_path, prefix):
    adapter = read(write_adapter(tmp_path / "a", draw_tensors(prefix=prefix)))
    assert all(len(pairs) == 7 for pairs in adapter.layers)


def test_name_of_the_adapter_in_the_tensors_names_does_not_matter(tmp_path):
    tensors = {k.replace(".weight", ".default.weight"): v for k, v in draw_tensors().items()}
    assert len(read(write_adapter(tmp_path / "a", tensors)).layers[0]) == 7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_floats_are_widened_exactly(tmp_path, dtype):
    folder = write_adapter(tmp_path / "a", config={"lora_alpha": 4})
    halves = {k: torch.from_numpy(v).to(dtype) for k, v in draw_tensors(rank=4).items()}
    save_file(halves, folder / "adapter_model.safetensors")
    pair = read(folder).layers[0]["k"]
    widened = {name: value.float().numpy() for name, value in halves.items()}
    assert pair.a.dtype == pair.b.dtype == np.float32
    np.testing.assert_array_equal(pair.a, factor(widened, 0, "k_proj", "A"))
    np.testing.assert_array_equal(pair.b, factor(widened, 0, "k_proj", "B"))


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("use_dora", True, "DoRA"),
        ("bias", "lora_only", "bias"),
        ("lora_bias", True, "bias"),
        ("modules_to_save", ["lm_head"], "modules_to_save"),
        ("trainable_token_indices", [1], "vocabulary"),
        ("init_lora_weights", "pissa", "init_lora_weights"),
        ("init_lora_weights", "pissa_niter_16", "init_lora_weights"),
        ("init_lora_weights", "olora", "init_lora_weights"),
        ("init_lora_weights", "loftq", "init_lora_weights"),
        ("corda_config", {"a": 1}, "corda_config"),
        ("target_parameters", ["x"], "target_parameters"),
        ("layer_replication", [[0, 1]], "layer_replication"),
        ("alora_invocation_tokens", [1], "activated"),
        ("use_qalora", True, "QALoRA"),
        ("a_new_idea", {"on": True}, "a_new_idea"),
        ("peft_type", "LOHA", "peft_type"),
        ("peft_type", 3, "peft_type"),
        ("task_type", "SEQ_CLS", "task_type"),
        ("r", 0, "r: must be"),
        ("r", "4", "r"),
        ("lora_alpha", 1e30, "lora_alpha"),
        ("rank_pattern", {"q_proj": -1}, "rank_pattern"),
        ("alpha_pattern", {"q_proj": 1e300}, "alpha_pattern"),
        ("alpha_pattern", {"(a+)+b": 1}, "alpha_pattern"),
        ("alpha_pattern", {".*.*.*": 1}, "alpha_pattern"),
        ("rank_pattern", {".?" * 28 + "!": 4}, "rank_pattern"),
        ("rank_pattern", {"(.|.)" * 28 + "!": 4}, "rank_pattern"),
        ("rank_pattern", {"((?:.|.))" * 28 + "!": 4}, "rank_pattern"),
        ("rank_pattern", {"(?=(.|.))" * 28 + "!": 4}, "rank_pattern"),
        ("rank_pattern", {"(q_proj": 4}, "rank_pattern"),
        ("alpha_pattern", {f"a{i}[x]": 1 for i in range(65)}, "alpha_pattern"),
        ("target_modules", [], "target_modules"),
        ("target_modules", None, "target_modules"),
        ("target_modules", ["k_proj"], "does not target"),
        ("exclude_modules", ["q_proj"], "does not target"),
        ("layers_to_transform", [1], "does not target"),
        ("layers_to_transform", 0, "does not target"),
    ],
)
def test_config_is_refused_by_key(tmp_path, key, value, named):
    error = refusal(write_adapter(tmp_path / "a", config={key: value}))
    assert (error.status, error.code, error.field) == (422, "invalid_lora_adapter", "lora_path")
    assert named in error.message


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\xff", "[" * 100_000, "{}"])
def test_config_that_is_not_json_is_refused(tmp_path, text):
    folder = write_adapter(tmp_path / "a")
    (folder / "adapter_config.json").write_bytes(text.encode("latin-1"))
    assert refusal(folder).code == "invalid_lora_adapter"


def test_config_over_a_mebibyte_is_refused(tmp_path):
    folder = write_adapter(tmp_path / "a", config={"revision": "x" * 2**20})
    assert (refusal(folder).status, refusal(folder).code) == (413, "lora_adapter_file_too_large")


def test_config_that_is_missing(tmp_path):
    folder = write_adapter(tmp_path / "a")
    (folder / "adapter_config.json").unlink()
    assert (refusal(folder).status, refusal(folder).code) == (404, "adapter_file_not_found")


def replaced(**changes: Any) -> dict[str, np.ndarray]:
    """Return all factors with some tensors of layer 0's q replaced; None leaves a tensor out."""
    tensors: dict[str, Any] = draw_tensors(rank=4)
    for name, value in changes.items():
        tensors[f"{Q0}.{name}.weight"] = value
    return {name: value for name, value in tensors.items() if value is not None}


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        (replaced(lora_A=None), "only one of"),
        (replaced(lora_B=None), "only one of"),
        (replaced(lora_A=f32(8, 64)), "[8, 64], expected [4, 64]"),
        (replaced(lora_A=f32(4, 65)), "expected [4, 64]"),
        (replaced(lora_B=f32(65, 4)), "expected [64, 4]"),
        (replaced(lora_B=f32(64, 4, 1)), "expected [64, 4]"),
        (replaced(lora_A=np.full((4, 64), np.nan, np.float32)), "not finite"),
        (replaced(lora_B=np.full((64, 4), np.inf, np.float32)), "not finite"),
        (replaced(lora_B=np.full((64, 4), 3e38, np.float32)), "overflows"),
        (replaced(lora_A=np.ones((4, 64), np.int8)), "type I8"),
        (replaced(lora_A=np.ones((4, 64))), "type F64"),
        (draw_tensors() | {f"{Q0}.lora_magnitude_vector": f32(64)}, "DoRA"),
        (draw_tensors() | {f"{Q0}.lora_B.bias": f32(64)}, "bias"),
        (draw_tensors() | {f"{Q0}.base_layer.bias": f32(64)}, "bias"),
        (draw_tensors() | {"base_model.model.lm_head.weight": f32(200, 64)}, "extra vocabulary"),
        (draw_tensors() | {"base_model.model.lm_head.lora_A.weight": f32(4, 64)}, "the head"),
        (
            draw_tensors() | {"base_model.model.model.embed_tokens.lora_embedding_A": f32(4, 9)},
            "the embedding",
        ),
        (draw_tensors() | {f"{Q0}.modules_to_save.weight": f32(64, 64)}, "modules_to_save"),
        (draw_tensors(prefix="vision_tower.encoder."), "is not a LoRA factor"),
        (draw_tensors() | draw_tensors(prefix="base_model.model."), "two adapters"),
        (draw_tensors() | draw_tensors(prefix="model."), "twice"),
        (draw_tensors(layers=[0, 2]), "the model has 2 layers"),
        ({"model.layers.0.mlp.q_proj.lora_A.weight": f32(4, 64)}, "is not a LoRA factor"),
        ({"x\n" * 300: f32(1)}, "is not a LoRA factor"),
        ({}, "no tensors"),
    ],
)
def test_tensors_are_refused_by_name(tmp_path, tensors, named):
    error = refusal(write_adapter(tmp_path / "a", tensors))
    assert (error.status, error.code) == (422, "invalid_lora_adapter")
    assert named in error.message and len(error.message) < 300 and "\n" not in error.message


def test_module_both_fused_and_by_itself_is_refused(tmp_path):
    tensors = draw_tensors(targets=("qkv_proj", "k_proj"))
    config = {"target_modules": ["qkv_proj", "k_proj"]}
    assert "two adapters" in refusal(write_adapter(tmp_path / "a", tensors, config=config)).message


def test_rank_over_the_limit_is_refused_before_data_are_read(tmp_path):
    folder = write_adapter(tmp_path / "a", rank=8)
    assert read(folder, LoraSettings(max_rank=8)).rank == 8
    error = refusal(folder, LoraSettings(max_rank=7))
    assert (error.status, error.code) == (409, "lora_rank_limit_exceeded")


def test_bytes_over_the_limit_are_refused_before_data_are_read(tmp_path):
    folder = write_adapter(tmp_path / "a")
    size = read(folder).size_bytes
    assert read(folder, LoraSettings(max_bytes=size // 2)).size_bytes == size
    error = refusal(folder, LoraSettings(max_bytes=size // 2 - 1))
    assert (error.status, error.code) == (409, "lora_byte_limit_exceeded")


@given(data=st.data())
def test_corrupt_files_are_refused_or_give_another_adapter(good, data):
    """A flipped bit in the numbers gives another adapter. No other error is raised, and no read
    hangs."""
    folder, contents = good
    name = data.draw(st.sampled_from(sorted(contents)))
    content = bytearray(contents[name])
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        for _ in range(data.draw(st.integers(1, 8))):
            content[data.draw(st.integers(0, min(len(content), 3000) - 1))] = data.draw(
                st.integers(0, 255)
            )
    for each, original in contents.items():
        (folder / each).write_bytes(content if each == name else original)
    try:
        adapter = read(folder)
    except AdapterRefused as error:
        assert error.code in ("invalid_lora_adapter", "lora_rank_limit_exceeded")
        return
    assert all(np.isfinite(pair.b).all() for pairs in adapter.layers for pair in pairs.values())


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A folder and the contents of its files."""
    folder = write_adapter(tmp_path_factory.mktemp("adapter") / "a")
    return folder, {path.name: path.read_bytes() for path in folder.iterdir()}


def test_corrupt_or_missing_weight_file_is_refused(tmp_path):
    folder = write_adapter(tmp_path / "a")
    weights = folder / "adapter_model.safetensors"
    data = weights.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    name = next(iter(header))
    header[name] = header[name] | {"data_offsets": [0, 2**60]}
    far = json.dumps(header).encode()
    spoiled = [b"", data[:4], data[: length // 2], data[:-1], b"\x80\x02}q\x00."]
    for bad in [*spoiled, struct.pack("<Q", len(far)) + far + data[8 + length :]]:
        weights.write_bytes(bad)
        assert refusal(folder).code == "invalid_lora_adapter"
    weights.unlink()
    assert refusal(folder).code == "invalid_lora_adapter"
