"""An adapter that `peft` saved has the same effect as merging it with `peft`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_export import export_gguf
from test_gguf_models import small_model

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.peft_folder import read_adapter
from penstock.config import LoraSettings
from penstock.kernels.weights import Dense
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.runtime.adapters import factors_of
from tests.support.checkpoints.lora_adapters import SMALL

peft = pytest.importorskip("peft", reason="the extra `dev` has it")

SIZES = {
    "hidden_size": SMALL.hidden_size,
    "intermediate_size": SMALL.intermediate_size,
    "num_hidden_layers": 2,
    "num_attention_heads": SMALL.num_heads,
    "num_key_value_heads": SMALL.num_kv_heads,
    "vocab_size": SMALL.vocab_size,
    "max_position_embeddings": SMALL.max_model_len,
}
NAMES = {
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


def save_random_adapter(model: Any, folder: Path, **config: Any) -> Any:
    """Wrap `model` with `peft`, randomize all factors, and save the adapter to `folder`."""
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **config))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.3)
    adapted.save_pretrained(folder)
    return adapted


def projections(model: Any) -> dict[tuple[int, str], torch.Tensor]:
    state = model.state_dict()
    return {
        (layer, short): state[f"model.layers.{layer}.{name}.weight"].clone()
        for layer in range(2)
        for name, short in NAMES.items()
    }


@pytest.mark.parametrize(
    "config",
    [
        {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"},
        {"r": 4, "lora_alpha": 6, "target_modules": list(NAMES), "use_rslora": True},
        {"r": 8, "target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
        {
            "r": 4,
            "lora_alpha": 3,
            "target_modules": ["q_proj", "o_proj", "up_proj", "down_proj"],
            "exclude_modules": ["layers.0.mlp.up_proj"],
            "rank_pattern": {"q_proj": 8, "layers.1.self_attn.o_proj": 2},
            "alpha_pattern": {"layers.1.self_attn.q_proj": 5, r"model\.layers\.0\.mlp\.\w+": 7},
        },
        {"r": 2, "target_modules": r".*\.layers\.0\.mlp\.(gate|up)_proj"},
    ],
)
def test_adapter_is_what_peft_merges(tmp_path: Path, config: dict[str, Any]) -> None:
    model = small_model("Llama", **SIZES)
    before = projections(model)
    merged = projections(save_random_adapter(model, tmp_path / "a", **config).merge_and_unload())
    adapter = read_adapter(tmp_path / "a", SMALL, LoraSettings())
    for (layer, name), weight in merged.items():
        pair = adapter.layers[layer].get(name)
        change = torch.zeros_like(weight) if pair is None else torch.from_numpy(pair.b @ pair.a)
        torch.testing.assert_close(weight - before[layer, name], change, **TOLERANCE)


def test_adapter_rows_match_a_gguf_base_with_permuted_rows(tmp_path: Path) -> None:
    """GGUF files of the llama architecture have permuted rows of q and k."""
    model = small_model("Llama", **SIZES)
    export_gguf(model, tmp_path / "base.gguf")
    adapted = save_random_adapter(model, tmp_path / "a", r=4, target_modules="all-linear")
    merged = projections(adapted.merge_and_unload())
    base = load_model(ModelFiles("m", "gguf", tmp_path / "base.gguf"), "f32")
    adapter = read_adapter(tmp_path / "a", base.spec, LoraSettings())
    for layer in range(2):
        parts = base.weights.layer(layer).qkv.parts
        for name, part in zip("qkv", parts, strict=True):
            pair = adapter.layers[layer][name]
            loaded = torch.from_numpy(part.data + pair.b @ pair.a)
            torch.testing.assert_close(loaded, merged[layer, name], **TOLERANCE)


def linears(model: LoadedModel, layer: int) -> list[Dense]:
    """Return the matrices of all projections of a layer, in the order of `factors_of`."""
    own = model.weights.layer(layer)
    return [
        part for linear in (own.qkv, own.output, own.gate_up, own.down) for part in linear.parts
    ]


def assert_adapts(folder: Path, name: str, **config: Any) -> None:
    """Check that a folder's model with its adapter computes the logits of the model that `peft`
    merges."""
    model = small_model(name, **SIZES)
    model.save_pretrained(folder / "base")
    adapted = save_random_adapter(model, folder / "a", r=4, lora_alpha=6, **config)
    adapted.merge_and_unload().save_pretrained(folder / "merged")
    base, merged = (
        load_model(ModelFiles("m", "folder", folder / name), "f32") for name in ("base", "merged")
    )
    factors = factors_of(read_adapter(folder / "a", base.spec, LoraSettings()), base.spec)
    pairs = [pair for linear in factors for pair in linear]
    assert any(pair is not None for pair in pairs)
    befores = [part for layer in range(2) for part in linears(base, layer)]
    afters = [part for layer in range(2) for part in linears(merged, layer)]
    for before, after, pair in zip(befores, afters, pairs, strict=True):
        change = 0 if pair is None else pair.b @ pair.a
        np.testing.assert_allclose(before.data + change, after.data, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("targets", ["all-linear", ["qkv_proj"], ["gate_up_proj", "down_proj"]])
def test_adapter_of_fused_projections_is_what_peft_merges(tmp_path: Path, targets: Any) -> None:
    assert_adapts(tmp_path, "Phi3", target_modules=targets)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "k_proj"]])
def test_adapter_rows_are_reordered_like_those_of_an_interleaved_base(
    tmp_path: Path, targets: Any
) -> None:
    """The family rotates neighbouring components in a part of each head."""
    assert_adapts(tmp_path, "Glm4", target_modules=targets)


@pytest.mark.parametrize("name", ["Arcee", "Phi", "Starcoder2"])
def test_adapter_of_a_feed_forward_without_a_gate_is_what_peft_merges(
    tmp_path: Path, name: str
) -> None:
    assert_adapts(tmp_path, name, target_modules="all-linear")


def test_adapter_of_a_gate_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    model = small_model("Llama", **SIZES)
    save_random_adapter(model, tmp_path, r=4, target_modules=["gate_proj"])
    with pytest.raises(AdapterRefused, match="the feed-forward of the model has no gate"):
        read_adapter(tmp_path, replace(SMALL, gated=False), LoraSettings())


def test_published_adapter_is_read(weights_dir: Path) -> None:
    """Rank 32 on all linear layers of a Qwen2.5-0.5B, bfloat16; the base is a quantized GGUF."""
    (file,) = (weights_dir / "qwen05b").glob("*.gguf")
    spec = load_model(ModelFiles("q", "gguf", file), "auto").spec
    adapter = read_adapter(weights_dir / "lora05b", spec, LoraSettings())
    assert adapter.rank == 32 and len(adapter.layers) == 24
    assert all(set(pairs) == set(NAMES.values()) for pairs in adapter.layers)
    assert adapter.size_bytes == 2 * 35_192_832  # the file has 2 bytes per element, and a header
