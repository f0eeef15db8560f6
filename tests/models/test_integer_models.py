"""Integer models give the logits of `transformers` with the dequantized weights in float32 mode,
and nearly so with integer products."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_stepper import Stepper, load_decoder
from safetensors.torch import load_file, save_file
from test_decoder import PROMPT, TOLERANCE, expected_logits
from test_moe_models import MIXTRAL, QWEN, random_model

from penstock.base.errors import ModelError
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.weights import Affine
from penstock.models.decoder.decoder import Decoder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model
from penstock.models.loader.tensor_parallel import shard_model
from tests.support.checkpoints.integer_checkpoints import FORMS, Form, unstacked, write_integers
from tests.support.thread_ranks import ThreadRanks, on_ranks

WIDE = {"intermediate_size": 192}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", WIDE),
    "qwen3": ("Qwen3", WIDE | {"head_dim": 32}),
    "llama, tied": ("Llama", WIDE | {"tie_word_embeddings": True}),
    "phi3": ("Phi3", WIDE),
    "glm4": ("Glm4", WIDE | {"head_dim": 16}),
    "qwen3 moe": ("Qwen3Moe", QWEN | WIDE | {"moe_intermediate_size": 64}),
    "mixtral": ("Mixtral", MIXTRAL | WIDE),
}
TABLES = r"(model\.embed_tokens|lm_head)\.weight"


@pytest.fixture(scope="module", params=list(MODELS))
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    name, options = MODELS[request.param]
    model = random_model(name, options)
    folder = tmp_path_factory.mktemp("integers") / "plain"
    model.save_pretrained(folder, max_shard_size="1GB")
    return folder, model


@pytest.fixture
def restored(plain: tuple[Path, Any]) -> Iterator[tuple[Path, Any]]:
    """The folder and its model. A test may change the model's weights."""
    folder, model = plain
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    yield folder, model
    model.load_state_dict(before)


def written(folder: Path, model: Any, to: Path, form: Form, more: str = "") -> None:
    """Write the model in integers, and set its own weights to the dequantized ones."""
    names = list(load_file(folder / "model.safetensors"))
    meant = unstacked(write_integers(folder, to, form, more), names)
    save_file(meant, to / "meant.safetensors", metadata={"format": "pt"})
    (to / "meant").mkdir()
    (to / "meant.safetensors").rename(to / "meant" / "model.safetensors")
    (to / "meant" / "config.json").write_text((folder / "config.json").read_text())
    same = type(model).from_pretrained(to / "meant", dtype=torch.float32)
    model.load_state_dict(same.state_dict())


@pytest.mark.parametrize(
    ("form", "more"),
    [
        ("gptq", ""),
        ("gptq symmetric", "lm_head.weight"),
        ("awq", ""),
        ("packed", ""),
        ("int8", ""),
        ("mlx", TABLES),
    ],
)
def test_float32_gives_the_logits_of_transformers_with_dequantized_weights(
    restored: tuple[Path, Any], tmp_path: Path, form: str, more: str
) -> None:
    folder, model = restored
    written(folder, model, tmp_path / "m", FORMS[form], more)
    logits = Stepper(*load_decoder(tmp_path / "m", "f32")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)
    kept = load_model(ModelFiles("m", "folder", tmp_path / "m"), "auto").weights.layer(0)
    assert all(isinstance(part, Affine) for part in kept.qkv.parts)


def test_integer_products_give_nearly_the_same_logits(
    restored: tuple[Path, Any], tmp_path: Path
) -> None:
    """The error is that of 8-bit activations; a misplaced nibble would give an error of 1."""
    folder, model = restored
    written(folder, model, tmp_path / "m", FORMS["awq"])
    logits = Stepper(*load_decoder(tmp_path / "m")).step({0: PROMPT}, all_rows=True)
    expected = expected_logits(model, PROMPT)
    assert float((logits - expected).std() / expected.std()) < 0.06


def test_biases_of_zeros_are_ignored_and_others_named(
    restored: tuple[Path, Any], tmp_path: Path
) -> None:
    """Some quantizers add a bias to every matrix."""
    folder, model = restored
    written(folder, model, tmp_path / "m", FORMS["gptq"])
    path = tmp_path / "m" / "model.safetensors"
    name = "model.layers.1.self_attn.o_proj.bias"
    tensors = load_file(path) | {name: torch.zeros(64)}
    save_file(tensors, path)
    load_model(ModelFiles("m", "folder", tmp_path / "m"), "auto")
    tensors[name][5] = 0.5
    save_file(tensors, path)
    with pytest.raises(ModelError, match=f"unexpected tensor {name}"):
        load_model(ModelFiles("m", "folder", tmp_path / "m"), "auto")


def test_a_tensor_without_a_matrix_is_named(restored: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = restored
    written(folder, model, tmp_path / "m", FORMS["gptq"])
    path = tmp_path / "m" / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"model.norm.g_idx": torch.zeros(4, dtype=torch.int32)}, path)
    with pytest.raises(ModelError, match=r"unexpected tensor model\.norm\.g_idx"):
        load_model(ModelFiles("m", "folder", tmp_path / "m"), "auto")
    name = "model.layers.0.self_attn.o_proj.qweight"
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, path)
    with pytest.raises(ModelError, match=r"model\.layers\.0\.self_attn\.o_proj\.weight is missing"):
        load_model(ModelFiles("m", "folder", tmp_path / "m"), "auto")


@pytest.mark.parametrize("form", ["gptq groups of 96", "awq groups of 64"])
def test_ranks_may_split_a_group_at_any_32_columns(tmp_path: Path, form: str) -> None:
    model = random_model("Qwen2", WIDE)
    model.save_pretrained(tmp_path / "plain")
    write_integers(tmp_path / "plain", tmp_path / "m", FORMS[form])
    whole = load_model(ModelFiles("m", "folder", tmp_path / "m"), "f32")
    expected = Stepper(*load_decoder(tmp_path / "m", "f32")).step({0: PROMPT}, all_rows=True)

    def of_rank(ranks: ThreadRanks) -> torch.Tensor:
        part = shard_model(whole, ranks.rank, 2)
        ops = ReferenceOps()
        decoder = Decoder(part.spec, part.weights, ops, max_model_len=256, ranks=ranks)
        return Stepper(decoder, ops).step({0: PROMPT}, all_rows=True)

    integers = load_model(ModelFiles("m", "folder", tmp_path / "m"), "auto")
    down = shard_model(integers, 1, 2).weights.layer(0).down
    assert down is not None and isinstance(down.parts[0], Affine)
    assert down.shape == (64, 96)
    for logits in on_ranks(2, of_rank):
        torch.testing.assert_close(logits, expected, **TOLERANCE)


def test_experts_with_different_scale_types_become_alike(tmp_path: Path) -> None:
    """A GPU needs all experts of a layer in one tensor."""
    model = random_model("Mixtral", MIXTRAL | WIDE)
    model.save_pretrained(tmp_path / "plain")
    write_integers(tmp_path / "plain", tmp_path / "m", FORMS["gptq in bfloat16"])
    path = tmp_path / "m" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.block_sparse_moe.experts.2.w1.scales"][0, 0] = 2.0**-30
    save_file(tensors, path)
    experts = load_model(ModelFiles("m", "folder", tmp_path / "m"), "auto").weights.layer(0).experts
    assert {one.scale.dtype for one in experts.gate} == {np.dtype(np.float32)}
    assert {one.scale.dtype for one in experts.up} == {np.dtype(np.float16)}
